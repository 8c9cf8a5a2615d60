"""POST /tokenize and /detokenize: the bodies."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import FailFast, Field, model_validator

from server.protocol.chat import Messages, TemplateFields
from server.protocol.fields import Count, RequestModel


class TokenizeRequest(TemplateFields):
    """A text (`prompt`) or a conversation (`messages`) to turn into ids."""

    messages: Messages = Field(default_factory=list)
    prompt: str | None = None
    model: str | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if bool(self.messages) == (self.prompt is not None):
            raise ValueError("send either prompt or messages")
        return self


class DetokenizeRequest(RequestModel):
    """Ids to turn into text, special tokens included."""

    tokens: Annotated[list[Count], Field(max_length=1_000_000), FailFast()]
    model: str | None = None
