"""Prompts of random token ids, or of random words where the endpoint takes text; one prefix for all, if wanted."""

from __future__ import annotations

from dataclasses import dataclass

from client.flags import flag
from client.lengths import Sized
from client.material import Material
from client.prompts import Content, Prompt, Session, joined
from client.values import whole


@dataclass(frozen=True, kw_only=True)
class Random(Sized):
    """See the module."""

    prefix_len: int = flag(
        "--random-prefix-len",
        parse=whole(0),
        default=0,
        metavar="N",
        shown="0",
        help="tokens before them that all prompts have in common",
    )
    vocab_size: int = flag(
        "--random-vocab-size", parse=whole(2), default=10000, metavar="N", help="random token ids are below this"
    )

    def sessions(self, count: int, material: Material) -> list[Session]:
        """See `Dataset`."""
        lengths = zip(self.input_lens(material.rng, count), self.output_lens(material.rng, count), strict=True)
        prefix = self._content(material, self.prefix_len) if self.prefix_len else None
        return [Session((self._prompt(material, prefix, size, output),)) for size, output in lengths]

    def _prompt(self, material: Material, prefix: Content | None, size: int, output: int) -> Prompt:
        content = self._content(material, size)
        return Prompt(content if prefix is None else joined(prefix, content), self.prefix_len + size, output)

    def _content(self, material: Material, size: int) -> Content:
        return material.ids(size, self.vocab_size) if material.as_ids else material.words(size)


DATASET = Random
