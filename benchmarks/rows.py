"""What its rows cost a decode step: by the format that they are stored in, and by the share of them that is kept.

    python -m benchmarks.rows [--tokens 4096] [--sequences 16] [--formats float32 int4] [--shares 1 0.2]

One prompt is read per format; every sequence gets a copy of its rows and, below a share of 1, is compressed by
`calibrated`. Then all sequences decode together, through the engine's own runner, with int8 weights. Settings
alternate; medians are printed. Beside them stands the limit: the time in which the machine reads the rows, once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks.forced import Fed, Feed
from benchmarks.machine import measure
from benchmarks.quality_engine import SLOTS, Engine, Subject, Variant
from benchmarks.throughput import prompts
from paged_kv.format import load_format
from scheduler.plan import SampleOrder, StepPlan
from scheduler.request import SamplingParams

_ORDER = SampleOrder(SamplingParams(max_tokens=1, temperature=0.0), choice=0, step=0)
_SLACK = 64  # tokens per sequence that a pool holds beyond those that are asked for


@dataclass(frozen=True, slots=True)
class Setting:
    """Rows of one format, of which `feds` keep a share, in an engine of their own. `row_bytes` are of one lane."""

    rows: str
    share: float
    engine: Engine
    feds: list[Fed]
    row_bytes: int

    def __str__(self) -> str:
        return f"{self.rows}, {self.share:.0%}"

    @property
    def bytes_read(self) -> int:
        """By attention in one step."""
        return sum(fed.table.total_rows for fed in self.feds) * self.row_bytes

    def step(self) -> tuple[float, float]:
        """Seconds in which every sequence decodes one token, and those of them that attention takes."""
        began = time.perf_counter()
        work = (replace(self.engine.forced.work(Feed(fed, [1]), 0, 1), sample=_ORDER) for fed in self.feds)
        result = self.engine.runner.execute(StepPlan(work=tuple(work)))
        return time.perf_counter() - began, result.seconds["attention"]


def settings(
    subject: Subject,
    formats: Sequence[str],
    shares: Sequence[float],
    prompt: Sequence[int],
    sequences: int,
    policy: Variant,
) -> list[Setting]:
    """All of them, `prompt` read into every sequence and compressed by `policy`."""
    found, tokens = [], len(prompt)
    state_bytes = subject.driver(policy).policy.state_bytes
    for rows in tqdm(formats, "Reading a prompt in each format"):
        saved = None
        for share in shares:
            copies = [tokens + _SLACK] + [round(share * tokens) + _SLACK] * sequences
            engine = Engine(subject, (policy,), rows, sum(copies))
            if saved is None:
                fed = engine.forced.begin("full", engine.num_lanes)
                engine.forced.read(fed, prompt, 1.0)
                saved = engine.forced.save(fed)
                engine.forced.end(fed)
            feds = []
            for _ in range(sequences):
                feds.append(engine.forced.restore(saved, str(policy), engine.num_lanes))
                if share < 1:
                    engine.forced.compress(feds[-1], share)
            head_dim = subject.model.config.head_dim
            row_bytes = load_format(rows).bytes_per_row(head_dim) + state_bytes
            found.append(Setting(rows, share, engine, feds, row_bytes))
    return found


def measured(chosen: Sequence[Setting], steps: int, read: float) -> dict[str, dict[str, float]]:
    """Medians over `steps` steps of each setting, which alternate. `read`: bytes that the machine reads in a second."""
    seconds: dict[str, list[tuple[float, float]]] = {str(setting): [] for setting in chosen}
    for _ in tqdm(range(steps), "Decoding"):
        for setting in chosen:
            seconds[str(setting)].append(setting.step())
    return {
        str(setting): {
            "step ms": 1e3 * statistics.median(step for step, _ in seconds[str(setting)]),
            "attention ms": 1e3 * statistics.median(attention for _, attention in seconds[str(setting)]),
            "limit ms": 1e3 * setting.bytes_read / read,
            "MiB of rows": setting.bytes_read / 2**20,
            "bytes a row": setting.row_bytes,
        }
        for setting in chosen
    }


def main() -> None:
    """Measure, print a table, write it as JSON and as a picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="as on the server's command line (the default model)")
    parser.add_argument("--formats", nargs="+", default=["float32", "bfloat16", "int8", "int4"], metavar="FORMAT")
    parser.add_argument("--shares", nargs="+", type=float, default=[1.0, 0.2], metavar="SHARE", help="of rows kept")
    parser.add_argument("--tokens", type=int, default=4096, help="of context")
    parser.add_argument("--sequences", type=int, choices=range(1, SLOTS + 1), default=SLOTS, metavar="N")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/rows.json"))
    arguments = parser.parse_args()
    read = measure(arguments.threads).read
    subject = Subject.load(arguments.model, quantize=True)
    with torch.inference_mode():
        (prompt,) = prompts(1, arguments.tokens - arguments.steps, seed=0)
        policy = Variant("calibrated")
        chosen = settings(subject, arguments.formats, arguments.shares, prompt, arguments.sequences, policy)
        table = measured(chosen, arguments.steps, read)
    columns = list(next(iter(table.values())))
    print(f"{arguments.sequences} sequences at {arguments.tokens} tokens; memory is read at {read / 1e9:.1f} GB/s")
    print(f"{'':16}", *(f"{column:>13}" for column in columns))
    for title, row in table.items():
        print(f"{title:16}", *(f"{row[column]:13,.1f}" for column in columns))
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    arguments.results.write_text(json.dumps({"read": read, "settings": table}, indent=2) + "\n")
    _draw(table, arguments.results.with_suffix(".svg"))


def _draw(table: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """A step's time by setting, its attention and that one's limit within; a note where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("No picture: it takes pip install '.[bench]'")
        return
    figure = Figure(figsize=(8, 0.45 * len(table) + 1.2), layout="constrained")
    axes = figure.subplots()
    for label, height, colour in (("step ms", 0.8, "0.85"), ("attention ms", 0.5, "C0"), ("limit ms", 0.2, "C1")):
        axes.barh(list(table), [row[label] for row in table.values()], height, color=colour, label=label)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds of a decode step")
    axes.legend(frameon=False)
    figure.savefig(path)


if __name__ == "__main__":
    main()
