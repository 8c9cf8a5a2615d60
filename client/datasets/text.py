"""Slices of a text file, from random places: what real tokens are like."""

from __future__ import annotations

from dataclasses import dataclass

from client.lengths import Sized
from client.material import Material
from client.prompts import Prompt, Session
from client.sources import FromFile


@dataclass(frozen=True, kw_only=True)
class Text(FromFile, Sized):
    """See the module."""

    def sessions(self, count: int, material: Material) -> list[Session]:
        """See `Dataset`."""
        inputs, outputs = self.input_lens(material.rng, count), self.output_lens(material.rng, count)
        book = material.book(self.file, max(inputs))
        return [
            Session((Prompt(book.slice(material.rng, size, as_ids=material.as_ids), size, output),))
            for size, output in zip(inputs, outputs, strict=True)
        ]


DATASET = Text
