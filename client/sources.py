"""The file that a dataset reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from client.errors import BenchError
from client.flags import flag
from client.prompts import Session


@dataclass(frozen=True, kw_only=True)
class FromFile:
    """Base of the datasets that read `--dataset-path`."""

    path: Path | None = flag(
        "--dataset-path",
        parse=Path,
        metavar="FILE",
        help="the file that prompts come from: text, conversations, a trace; a text for facts if wanted",
    )

    @property
    def file(self) -> Path:
        """The file. Raises BenchError if none was named."""
        if self.path is None:
            raise BenchError("this --dataset-name needs --dataset-path FILE")
        return self.path


@dataclass(frozen=True, kw_only=True)
class FromList(FromFile):
    """Base of the datasets whose file is a list of sessions."""

    disable_shuffle: bool = flag(
        "--disable-shuffle", action="store_true", default=False, help="keep to the order of the file"
    )

    def pick(self, found: Sequence[Session], count: int, rng: np.random.Generator) -> list[Session]:
        """`count` of `found`, which is not empty; if it has fewer, they come again."""
        order = np.arange(len(found)) if self.disable_shuffle else rng.permutation(len(found))
        return [found[int(order[i % len(order)])] for i in range(count)]
