"""The names that reports give to things."""

from __future__ import annotations

from collections.abc import Sequence

from client.experiment import Run
from client.options import Options

LABELS = {
    "ttft": "Time to first token (TTFT)",
    "tpot": "Time per output token (TPOT)",
    "itl": "Inter-token latency (ITL)",
    "e2el": "End-to-end latency (E2EL)",
    "client_queue_time": "Waiting in the client",
}


def facts(run: Run, options: Options) -> dict[str, str]:
    """What was asked of whom."""
    dataset = options.dataset
    sizes = [("input_len", "tokens in"), ("output_len", "out")]
    lengths = [f"{getattr(dataset, name)} {unit}" for name, unit in sizes if getattr(dataset, name, None)]
    prompts = [options.requests.dataset_name, f"{run.summary.planned} requests", *lengths]
    named = {"Target": run.target.name} if run.target.name else {}
    return named | {
        "Server": run.target.url(options.server.path),
        "Model": run.target.model,
        "Load": run.level.describe(),
        "Prompts": ", ".join(prompts),
    }


def name(run: Run, runs: Sequence[Run]) -> str:
    """What tells `run` from the others of `runs`; its target if it is the only one."""
    parts = [run.target.name] if len({one.target.name for one in runs}) > 1 else []
    if len({one.level.number for one in runs}) > 1:
        parts.append(run.level.describe())
    return ", ".join(parts) or run.target.name or run.target.model
