"""Prompts that begin alike and end differently, in random order: what a prefix cache is for."""

from __future__ import annotations

from dataclasses import dataclass

from client.flags import flag
from client.lengths import output_len_flag
from client.material import Material
from client.prompts import Content, Prompt, Session, joined
from client.values import whole

VOCAB_SIZE = 10000


@dataclass(frozen=True, kw_only=True)
class PrefixRepetition:
    """See the module."""

    prefix_len: int = flag(
        "--prefix-repetition-prefix-len", parse=whole(1), default=256, metavar="N", help="tokens in common"
    )
    suffix_len: int = flag(
        "--prefix-repetition-suffix-len", parse=whole(1), default=256, metavar="N", help="tokens after them"
    )
    num_prefixes: int = flag(
        "--prefix-repetition-num-prefixes", parse=whole(1), default=10, metavar="N", help="different beginnings"
    )
    output_len: int = output_len_flag("--prefix-repetition-output-len")

    def sessions(self, count: int, material: Material) -> list[Session]:
        """See `Dataset`."""
        prefixes = [self._content(material, self.prefix_len) for _ in range(self.num_prefixes)]
        order = material.rng.permutation(count) % self.num_prefixes
        return [Session((self._prompt(material, prefixes[int(which)]),)) for which in order]

    def _prompt(self, material: Material, prefix: Content) -> Prompt:
        content = joined(prefix, self._content(material, self.suffix_len))
        return Prompt(content, self.prefix_len + self.suffix_len, self.output_len)

    def _content(self, material: Material, size: int) -> Content:
        return material.ids(size, VOCAB_SIZE) if material.as_ids else material.words(size)


DATASET = PrefixRepetition
