"""What one request leaves behind. All times are seconds since the run began."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request failed: `kind` groups like failures (`http_503`, `timeout`, ...), `message` is this one's own."""

    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True, slots=True)
class Arrival:
    """One event that brought output: text, or a count that rose.

    `counted` is the number of output tokens so far, where the server says so with every event, else None.
    """

    at: float
    text: str
    counted: int | None = None


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request, finished or failed.

    `due` is when the load plan wanted it sent, and where every latency starts; `sent` is when it was.
    `prompt_tokens` and `completion_tokens` are the server's own count, None where it gave none.
    `expects` is what a right answer contains, None if any is right.
    A record without failure has at least one arrival.
    """

    request_id: str
    prompt_len: int
    due: float
    sent: float
    finished: float
    arrivals: tuple[Arrival, ...] = ()
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    failure: Failure | None = None
    expects: str | None = None

    @property
    def text(self) -> str:
        """All the output text that came, failed or not."""
        return "".join(arrival.text for arrival in self.arrivals)

    @property
    def input_tokens(self) -> int:
        """The server's count of the prompt, else the length that was asked for."""
        return self.prompt_tokens if self.prompt_tokens is not None else self.prompt_len

    @property
    def is_right(self) -> bool:
        """Whether the answer holds what it must hold."""
        return self.expects is None or self.expects in self.text
