"""What an operator chooses about the engine; resolved once, then frozen."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from server.container import CONTROL_GROUP, memory_limit_and_use

LaneMode = Literal["uniform", "layer", "global", "profile"]

_GIB = 2**30
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of the engine, named as their flags; None leaves a choice to the model, the machine or the policy."""

    model: str | None = None
    cache_dir: Path | None = None
    chat_template: Path | None = None
    generation_config: Literal["auto", "none"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    quantization: Literal["auto", "none", "int8"] = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_num_queued_reqs: int | None = 1024
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    page_size: int = 16
    kv_cache_memory_bytes: int | None = None
    kv_cache_dtype: str = "auto"
    kv_policy: str = "auto"
    kv_budget: float | int = 0.2
    kv_evict: Literal["pressure", "always"] = "pressure"
    kv_sinks: int | None = None
    kv_window: int | None = None
    kv_lanes: LaneMode | None = None
    kv_pool: int | None = None
    kv_calibration: Path | None = None
    attention_backend: str = "auto"
    enable_prefix_caching: bool = True
    debug_pages: bool = False


def parse_budget(text: str) -> float | int:
    """ "0.2" is the share of rows kept, "512" rows per lane. Raises ValueError."""
    try:
        budget = int(text) if text.strip().isdecimal() else float(text)
    except ValueError:
        budget = -1
    if isinstance(budget, int) and budget >= 1:
        return budget
    if isinstance(budget, float) and 0.0 < budget <= 1.0:
        return budget
    raise ValueError(f"{text!r} is neither a share such as 0.2 nor rows per lane such as 512")


def parse_pool(text: str) -> int:
    """An odd number of rows. Raises ValueError."""
    if text.isdecimal() and int(text) % 2:
        return int(text)
    raise ValueError(f"{text!r} is not an odd number of rows; 1 leaves scores as they are")


def parse_size(text: str) -> int:
    """Bytes from "268435456", "256MiB", "1.5 GB", "2g". Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write it as 512MiB or 2GiB")
    number, unit, binary = match.groups()
    factor = _UNITS[unit.lower()]
    if binary:
        factor = 1024 ** ["", "k", "m", "g", "t"].index(unit.lower())
    return int(float(number) * factor)


def default_pool_bytes(control_group: Path = CONTROL_GROUP) -> int:
    """A quarter of the memory that is free now, to the machine and in a container's limit; at most 4 GiB."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if (memory := memory_limit_and_use(control_group)) is not None:
        free = min(free, memory[0] - memory[1])
    return max(0, min(4 * _GIB, free // 4))
