"""The values that cross the engine's front door: a request in, token events out. Ids only, never text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens. Ranges are checked at the edge; the engine trusts them.

    `logprobs` / `prompt_logprobs`: None for none, otherwise how many alternatives accompany each token (0 = only the
    token itself). `seed` is always set: the edge draws one where the client gave none. `top_k` 0 means no limit.
    `max_tokens` 0 scores the prompt and generates nothing. `allowed_token_ids`, unless empty: nothing else is drawn.
    `bad_words`: id sequences that the output may not complete. `logprob_token_ids`: alternatives reported in place of
    the likeliest ones.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    logprob_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None


class ConstraintError(Exception):
    """What a request demands of its output cannot be kept any longer; the message is for its sender."""


@dataclass(frozen=True, slots=True)
class Unsatisfiable:
    """Why a choice ended early by its request's own fault: it demands what cannot be. `message` is for its sender."""

    message: str


class Constraint(Protocol):
    """What one choice may say, token by token. The scheduler only carries it; the thread that samples asks it."""

    def foresee(self, output: tuple[int, ...]) -> None:
        """`allowed(output)` is the next call, and soon: it can be worked out in the background. Need not be called."""

    def allowed(self, output: tuple[int, ...]) -> npt.NDArray[np.int32]:
        """The ids that may follow `output`, all that the choice has said: bit i % 32 of word i // 32 is id i.

        `output` only ever grows, by whatever number of tokens. Raises ConstraintError.
        """


class Grammar(Protocol):
    """Makes constraints for the choices of a request, each with a state of its own."""

    def begin(self) -> Constraint:
        """The constraint of a choice that has said nothing yet."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt and `n` continuations of it.

    `kv_budget`: a float in (0, 1] is the share of rows kept, an int >= 1 rows per lane (a mean over lanes);
    None takes the server's. `kv_policy`: a policy's name, None takes the server's. `priority`: lower runs first,
    under `--scheduling-policy priority`. `grammar`: what the output must follow. `cache_salt`: rows are
    shared with requests of the same salt only. `sender_id`: what its sender calls it, for the log; not unique.
    """

    request_id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    n: int = 1
    priority: int = 0
    kv_policy: str | None = None
    kv_budget: float | int | None = None
    grammar: Grammar | None = None
    cache_salt: str | None = None
    sender_id: str | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural-log probability of one token, and of the most likely alternatives, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class KVUsage:
    """Rows of one sequence at its end, as a mean over lanes: kept, evicted so far; and how often it was preempted.

    `cached_tokens`: tokens of the prompt that were in the prefix cache and not computed.
    """

    rows_kept: float
    rows_evicted: float
    preemptions: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Moments in one choice's life, in seconds of `time.monotonic`; None where it never got there."""

    arrived: float
    first_scheduled: float | None
    first_token: float | None
    finished: float


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a choice ended. `stop_token`: which of the request's `stop_token_ids` did it.

    `error`: a sentence to show if the engine failed, or what is wrong with the request.
    """

    reason: FinishReason
    usage: KVUsage
    timings: Timings
    stop_token: int | None = None
    error: str | Unsatisfiable | None = None


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """What a stream yields for choice `index`: tokens since the last event, and `finish` on the last one of the choice.

    `logprobs` matches `tokens` one to one where asked for, else it is empty. The end-of-sequence token that stopped a
    choice is counted in `tokens`. `prompt_logprobs` comes once, on the first event of choice 0, with one entry per
    prompt token; the first is None, because nothing precedes it.
    """

    index: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish: Finish | None = None
