"""Responses that clients asked to keep: in memory, the latest ones only."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from server.errors import ApiError
from server.protocol.chat import ChatMessage

_MOST_RESPONSES = 1024
_MOST_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """An answer, and the conversation up to it, its own turn included."""

    response: Mapping[str, Any]
    messages: tuple[ChatMessage, ...]
    size: int


class ResponseStore:
    """Owns what is kept; for the event loop. What is too much goes, oldest first."""

    def __init__(self) -> None:
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """What is kept takes about so much."""
        return self._num_bytes

    def add(self, response: Mapping[str, Any], messages: tuple[ChatMessage, ...]) -> None:
        """Keep `response` under its id."""
        size = len(to_json(response)) + sum(len(part.text) for message in messages for part in message.content)
        self._stored[response["id"]] = StoredResponse(response, messages, size)
        self._num_bytes += size
        while len(self._stored) > _MOST_RESPONSES or self._num_bytes > _MOST_BYTES:
            _, oldest = self._stored.popitem(last=False)
            self._num_bytes -= oldest.size

    def get(self, identity: str, param: str) -> StoredResponse:
        """Raises ApiError (404) if there is none, or no longer."""
        if identity not in self._stored:
            raise ApiError(
                f"There is no response {identity[:100]!r} here. It keeps those sent with store: true, for a while.",
                status=404,
                param=param,
                code="response_not_found",
            )
        return self._stored[identity]

    def remove(self, identity: str) -> None:
        """Forget one. Raises ApiError (404) if there is none."""
        self._num_bytes -= self.get(identity, "response_id").size
        del self._stored[identity]
