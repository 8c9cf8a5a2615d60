"""Conversations from a JSON file as ShareGPT has them: what people really asked, and how long the answers were.

The file is a list of `{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}, ...]}`;
`messages`, `role` and `content`, as OpenAI calls them, do as well. The recorded answers only give lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from pydantic import AliasChoices, BaseModel, Field, TypeAdapter, ValidationError

from client.errors import BenchError
from client.flags import flag
from client.lengths import output_len_flag
from client.material import Material, read_text
from client.prompts import Prompt, Session
from client.sources import FromList
from client.values import whole

_USERS, _MODELS = ("human", "user"), ("gpt", "assistant", "chatgpt", "bard", "bing")


class _Message(BaseModel):
    role: str = Field(validation_alias=AliasChoices("from", "role"))
    text: str = Field(validation_alias=AliasChoices("value", "content"))


class _Conversation(BaseModel):
    messages: list[_Message] = Field(validation_alias=AliasChoices("conversations", "messages", "conversation"))


_FILE = TypeAdapter(list[_Conversation])


@dataclass(frozen=True, kw_only=True)
class ShareGpt(FromList):
    """See the module."""

    output_len: int | None = output_len_flag("--sharegpt-output-len", default=None)
    num_turns: int = flag(
        "--num-turns", parse=whole(1), default=1, metavar="N", help="prompts of each conversation at most"
    )
    max_len: int = flag(
        "--sharegpt-max-len",
        parse=whole(1),
        default=2048,
        metavar="N",
        help="skip conversations with more tokens than this, prompts and answers together",
    )

    def sessions(self, count: int, material: Material) -> list[Session]:
        """See `Dataset`. With fewer conversations in the file than asked for, they come again."""
        found = [session for one in self._conversations() if (session := self._session(one, material))]
        if not found:
            raise BenchError(f"--dataset-path: {self.file} has no conversation of at most {self.max_len} tokens")
        return self.pick(found, count, material.rng)

    def _conversations(self) -> list[_Conversation]:
        try:
            return _FILE.validate_json(read_text(self.file))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise BenchError(f"--dataset-path: {self.file} is no ShareGPT file: {first['msg']} at {place}") from error

    def _session(self, one: _Conversation, material: Material) -> Session | None:
        turns = [(a.text, b.text) for a, b in pairwise(one.messages) if a.role in _USERS and b.role in _MODELS]
        prompts = [
            Prompt(asked, material.count(asked), self.output_len or material.count(answered))
            for asked, answered in turns[: self.num_turns]
            if asked and answered
        ]
        total = sum(prompt.input_len + prompt.output_len for prompt in prompts)
        return Session(tuple(prompts)) if prompts and total <= self.max_len else None


DATASET = ShareGpt
