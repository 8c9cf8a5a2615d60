"""Which engines there are, and what each needs to be started."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

# As our server sets it: OpenMP's own choice makes threads wait for others that spin, for long on a busy machine.
_SPIN_COUNT = "20000"
PEERS = Path(".peers")
_GIB = 2**30
_ROW_BYTES = 8 * 30 * 3 * 64  # K and V of one token in float32, all lanes of the default model


@dataclass(frozen=True, slots=True)
class Spec:
    """An engine: its worker in `benchmarks.engines`, what it computes with, and the interpreter that runs it.

    `environment`: variables beyond the common ones; in their values {home} stands for the peer's folder, {gib} for the
    GiB that its KV memory needs.
    """

    name: str
    label: str
    weights: str
    worker: str
    peer: str | None = None  # folder below .peers; None: this project
    model: str = ""  # below the peer's folder
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        """The peer's folder."""
        return PEERS / (self.peer or "")

    @property
    def interpreter(self) -> str:
        """The Python that runs the worker."""
        return sys.executable if self.peer is None else str(self.home / "bin" / "python")

    def missing(self) -> str | None:
        """A line that says how to set the engine up, or None if it is."""
        if self.peer is None or (self.home / ".ready").is_file():
            return None
        return f"{self.label} is skipped: it is not set up here; `make peers` does that"

    def variables(self, threads: int, kv_tokens: int) -> dict[str, str]:
        """The worker's environment. `kv_tokens`: tokens that the KV memory must hold."""
        gib = -(-kv_tokens * _ROW_BYTES // _GIB) + 1
        own = {name: value.format(home=self.home.resolve(), gib=gib) for name, value in self.environment.items()}
        common = {"OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": _SPIN_COUNT, "TQDM_DISABLE": "1"}
        return {**os.environ, **common, **own}


_SPECS = (
    Spec("scissorserve", "scissorserve, HTTP", "as its flags say", "http"),
    Spec("local", "scissorserve, no HTTP", "as its flags say", "local"),
    Spec("openvino", "OpenVINO GenAI", "int8", "openvino", peer="openvino", model="model"),
    Spec("llama.cpp", "llama.cpp", "Q4_1", "llama_cpp", peer="llama_cpp", model="model.gguf"),
    Spec(
        "vllm",
        "vLLM CPU",
        "float32",
        "vllm",
        peer="vllm",
        model="model",
        environment={
            "VLLM_CACHE_ROOT": "{home}/cache",
            "VLLM_CPU_KVCACHE_SPACE": "{gib}",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_USE_AOT_COMPILE": "0",  # 0.32 saves what it then cannot load, and compiles again at every start
        },
    ),
)
SPECS: Mapping[str, Spec] = {spec.name: spec for spec in _SPECS}
