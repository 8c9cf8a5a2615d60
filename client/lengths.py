"""How many tokens prompts and answers have."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from client.flags import flag
from client.values import real, whole

Distribution = Literal["uniform", "lognormal"]


DEFAULT_OUTPUT_LEN = 128


def output_len_flag(*aliases: str, default: int | None = DEFAULT_OUTPUT_LEN) -> Any:
    """The flag for the length of answers, which is the same for all datasets but for its `default`."""
    told = "tokens to generate; default: 128, with facts 16, with sharegpt and custom what the file says"
    return flag("--output-len", *aliases, parse=whole(1), default=default, shown="", metavar="N", help=told)


@dataclass(frozen=True, kw_only=True)
class Sized:
    """Base of the datasets whose lengths are drawn: the flags for it."""

    input_len: int = flag(
        "--input-len", "--random-input-len", parse=whole(1), default=1024, metavar="N", help="tokens in a prompt"
    )
    output_len: int = output_len_flag("--random-output-len")
    range_ratio: float = flag(
        "--random-range-ratio",
        parse=real(0, below=1),
        default=0.0,
        metavar="R",
        shown="0",
        help="how far lengths spread: up to this share of the mean; of lognormal ones the standard deviation",
    )
    length_distribution: Distribution = flag(
        "--length-distribution",
        choices=["uniform", "lognormal"],
        default="uniform",
        help="lognormal has many short and a few very long ones, as people's prompts do",
    )

    def input_lens(self, rng: np.random.Generator, count: int) -> list[int]:
        """`count` lengths of prompts."""
        return draw_lengths(rng, self.input_len, self.range_ratio, self.length_distribution, count)

    def output_lens(self, rng: np.random.Generator, count: int) -> list[int]:
        """`count` lengths of answers."""
        return draw_lengths(rng, self.output_len, self.range_ratio, self.length_distribution, count)


def draw_lengths(
    rng: np.random.Generator, mean: int, spread: float, distribution: Distribution, count: int
) -> list[int]:
    """`count` lengths of at least 1 around `mean`: within `spread * mean` of it, or with that standard deviation."""
    lengths = _DRAW[distribution](rng, mean, spread, count)
    return [max(1, int(length)) for length in np.rint(lengths)]


def _uniform(rng: np.random.Generator, mean: int, spread: float, count: int) -> npt.NDArray[np.float64]:
    low, high = max(1, round(mean * (1 - spread))), round(mean * (1 + spread))
    return rng.integers(low, high, count, endpoint=True).astype(np.float64)


def _lognormal(rng: np.random.Generator, mean: int, spread: float, count: int) -> npt.NDArray[np.float64]:
    variance = math.log(1 + spread**2)
    return rng.lognormal(math.log(mean) - variance / 2, math.sqrt(variance), count)


_DRAW: dict[Distribution, Callable[[np.random.Generator, int, float, int], npt.NDArray[np.float64]]] = {
    "uniform": _uniform,
    "lognormal": _lognormal,
}
