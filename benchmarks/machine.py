"""What this machine can do at best: memory read speed and GEMM rates.

python -m benchmarks.machine [--threads 2]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

_REPEATS = 7
_READ_BYTES = 2**30  # far beyond any cache that two cores may have to themselves
_SIDE = 2048


@dataclass(frozen=True, slots=True)
class Machine:
    """Best of a few tries. `read`: bytes per second; `float32`, `bfloat16`, `int8`: GEMM operations per second,
    a multiplication and an addition being two."""

    read: float
    float32: float
    bfloat16: float
    int8: float


def measure(threads: int) -> Machine:
    """Takes a few seconds, and the memory of a GiB."""
    torch.set_num_threads(threads)
    return Machine(_read(), _gemm(torch.float32), _gemm(torch.bfloat16), _int8_gemm())


def _read() -> float:
    columns = 16_384
    matrix, vector = torch.ones(_READ_BYTES // 4 // columns, columns), torch.ones(columns)
    return _READ_BYTES / _best(lambda: matrix @ vector)


def _gemm(dtype: torch.dtype) -> float:
    left, right = torch.ones(_SIDE, _SIDE, dtype=dtype), torch.ones(_SIDE, _SIDE, dtype=dtype)
    return 2 * _SIDE**3 / _best(lambda: left @ right)


def _int8_gemm() -> float:
    left, right = (torch.ones(_SIDE, _SIDE, dtype=torch.int8) for _ in range(2))
    return 2 * _SIDE**3 / _best(lambda: torch._int_mm(left, right))


def _best(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def main() -> None:
    """Print the figures as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    print(json.dumps(asdict(measure(parser.parse_args().threads))))


if __name__ == "__main__":
    main()
