"""Prompts from a file of JSON lines: `{"prompt": "...", "output_tokens": 64}`, the second if it is wanted."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, Field, ValidationError

from client.errors import BenchError
from client.lengths import DEFAULT_OUTPUT_LEN, output_len_flag
from client.material import Material, read_text
from client.prompts import Prompt, Session
from client.sources import FromList


class _Line(BaseModel):
    prompt: str = Field(min_length=1)
    output_tokens: int | None = Field(default=None, ge=1)


@dataclass(frozen=True, kw_only=True)
class Custom(FromList):
    """See the module."""

    output_len: int | None = output_len_flag("--custom-output-len", default=None)

    def sessions(self, count: int, material: Material) -> list[Session]:
        """See `Dataset`. With fewer prompts in the file than asked for, they come again."""
        lines = enumerate(read_text(self.file).split("\n"), 1)
        found = [self._session(number, text, material) for number, text in lines if text.strip()]
        if not found:
            raise BenchError(f"--dataset-path: {self.file} has no prompt")
        return self.pick(found, count, material.rng)

    def _session(self, number: int, text: str, material: Material) -> Session:
        try:
            line = _Line.model_validate_json(text)
        except ValidationError as error:
            raise BenchError(
                f'--dataset-path: line {number} of {self.file} must be like {{"prompt": "...", "output_tokens": 64}}: '
                f"{error.errors()[0]['msg']}"
            ) from error
        output_len = self.output_len or line.output_tokens or DEFAULT_OUTPUT_LEN
        return Session((Prompt(line.prompt, material.count(line.prompt), output_len),))


DATASET = Custom
