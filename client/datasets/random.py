"""Prompts of random token ids, or of random words where the endpoint takes text. Nothing in them repeats."""

from __future__ import annotations

from dataclasses import dataclass

from client.flags import flag
from client.lengths import Sized
from client.material import Material
from client.prompts import Prompt, Session
from client.values import whole


@dataclass(frozen=True, kw_only=True)
class Random(Sized):
    """See the module."""

    vocab_size: int = flag(
        "--random-vocab-size", parse=whole(2), default=10000, metavar="N", help="random token ids are below this"
    )

    def sessions(self, count: int, material: Material) -> list[Session]:
        """See `Dataset`."""
        lengths = zip(self.input_lens(material.rng, count), self.output_lens(material.rng, count), strict=True)
        return [Session((self._prompt(material, size, output),)) for size, output in lengths]

    def _prompt(self, material: Material, size: int, output: int) -> Prompt:
        content = material.ids(size, self.vocab_size) if material.as_ids else material.words(size)
        return Prompt(content, size, output)


DATASET = Random
