"""The file that a dataset reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from client.errors import BenchError
from client.flags import flag


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
