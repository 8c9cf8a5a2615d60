"""What an operator chooses about the HTTP side; resolved once, then frozen."""

from __future__ import annotations

from dataclasses import dataclass, field

from server.sampling_defaults import SamplingDefaults

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds after which a stream's silence is broken by a comment, and a reader who takes nothing is given up."""

    keep_alive: float = 15.0
    stall: float = 120.0


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of the server. Raises ValueError where they cannot work.

    `model_names`: the names clients may ask for; the first is reported. `created`: Unix time shown for the models.
    `max_choices`: prompts times `n` of one request. `shutdown_timeout`: seconds that running requests get after the
    first signal. `keep_alive`: seconds an idle connection stays open, longer than proxies and SDKs keep theirs.
    `body_seconds`: that a body may take to arrive. `pace`: how streams are sent.
    `enable_auto_tool_choice`: the model may choose to call tools; `tool_call_parser` reads how it writes calls.
    `sampling`: how tokens are drawn where a request does not say.
    `seed`: makes the seeds of requests that bring none repeat from start to start; None draws them at random.
    `warm_up`: the server is ready only after a request of its own.
    """

    model_names: tuple[str, ...]
    version: str = "0"
    created: int = 0
    api_keys: tuple[str, ...] = ()
    response_role: str = "assistant"
    max_body_bytes: int = 32 * _MIB
    max_choices: int = 256
    max_logprobs: int = 20
    shutdown_timeout: float = 30.0
    keep_alive: int = 75
    seed: int | None = None
    body_seconds: float = 60.0
    pace: Pace = Pace()
    enable_auto_tool_choice: bool = False
    tool_call_parser: str | None = None
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)
    warm_up: bool = False

    def __post_init__(self) -> None:
        if not self.model_names or not all(self.model_names):
            raise ValueError("give the model at least one name, and no empty one")
        if not all(self.api_keys):
            raise ValueError("an API key is empty; remove it, or give it a value")
        if self.enable_auto_tool_choice and self.tool_call_parser is None:
            raise ValueError("--enable-auto-tool-choice needs --tool-call-parser: how the model writes calls")
        if any(not key.isascii() or not key.isprintable() for key in self.api_keys):
            raise ValueError("API keys must be printable ASCII, since they travel in a header")
