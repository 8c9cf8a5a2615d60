"""This server beside OpenVINO GenAI, llama.cpp and vLLM on the same prompts, each with its own best-supported weights.

    make peers                      sets the others up, once
    python -m benchmarks.peers [--rounds 2] [--concurrency 1 4 16] [--prefill 512 2048] [--flags SERVER FLAGS]

Engines run one at a time, each in a process of its own, A B C D A B C D, so that what drifts on the machine drifts for
all. All get the same random token ids (fresh in every run, so nothing of a prefix is reused), the same number of
threads, choose greedily and ignore end-of-sequence tokens. What is measured:

decode      N prompts are sent at once. The clock starts when the last of them has its first token, so that no prompt is
            left to be read, and stops when each has brought --new-tokens more. The rate is N times --new-tokens over
            that time. Sequences that were ahead are longer by what they had generated already.
prefill     Tokens of one prompt over the time to its first token, on an idle engine.
first token The time from sending to the first token: alone, and as a mean of those sent at once.
cold start  From starting the process to the first token of a 16-token prompt. Caches on disk are warm.
peak memory The most resident memory that the engine's process and its children had, at the end of all runs.

The share of the CPU time that other programs took stands beside: figures from a busy machine say little.

`scissorserve, HTTP` is the server, heard through streamed completions; `scissorserve, no HTTP` is the same engine in
the worker's process, stepped as the peers are. Limits are what this machine's memory and GEMM rates, measured in the
same rounds, would allow with weights and rows of that type (scales not counted).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tqdm import tqdm

from benchmarks.engines.catalog import SPECS, Spec
from benchmarks.engines.process import EngineFailed, Report, work
from benchmarks.engines.protocol import COLD_START, Run
from benchmarks.machine import Machine
from benchmarks.peers_figures import Metric, decode_key, figures, medians, metrics, prefill_key, ratios, reservations
from benchmarks.peers_table import median_table, ratio_table
from benchmarks.roofline import Format, Shape, decode_limit, prefill_limit
from benchmarks.throughput import prompts
from models.source import default_cache_dir, model_display_name, prepare_model

_REPEATS = 3  # of reading one prompt, in a round
_WARM_UP = "warm-up"
_FORMATS: tuple[Format, ...] = ("int8", "float32")


@dataclass(slots=True)
class Measured:
    """What has been measured so far: a dictionary per round and engine, and the machine once a round."""

    machine: list[Machine] = field(default_factory=list)
    rounds: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def add(self, spec: Spec, report: Report, new_tokens: int) -> None:
        """Take in a round of one engine. Raises ValueError, see `figures`."""
        assert report.closing is not None, "the worker has not closed"
        self.rounds.setdefault(spec.name, []).append(figures(report, new_tokens))
        self.versions[spec.name] = report.closing.version


def main() -> None:
    """Measure, print the tables, write tables, JSON and picture."""
    arguments = _parse()
    try:
        from benchmarks.peers_plot import draw
    except ImportError:
        raise SystemExit("the picture needs matplotlib: run `make peers`, or pip install '.[bench]'") from None
    specs = _ready(arguments.engines)
    measured = _measure(specs, arguments)
    wanted = metrics(arguments.concurrency, arguments.prefill)
    headings = {name: _heading(SPECS[name]) for name in measured.rounds}
    middle = {headings[name]: medians(rounds) for name, rounds in measured.rounds.items()}
    limits = _limits(measured.machine, arguments)
    text = _tables(wanted, measured, headings, middle, limits, arguments)
    print(text)
    folder: Path = arguments.results
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "peers.md").write_text(text)
    (folder / "peers.json").write_text(json.dumps(_record(measured, limits, arguments), indent=2) + "\n")
    ours = [headings[name] for name in measured.rounds if SPECS[name].peer is None]
    setting = _setting(measured, headings, arguments)
    levels = arguments.concurrency, arguments.prefill
    draw(folder / "peers.png", model_display_name(None), setting, middle, ours, limits, *levels)
    print(f"Written to {folder}/peers.md, .json and .png")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--rounds", type=int, default=2)
    add("--engines", nargs="+", choices=SPECS, default=list(SPECS), metavar="NAME", help=", ".join(SPECS))
    add("--concurrency", nargs="+", type=int, default=[1, 4, 16], metavar="N", help="sequences at once (1 4 16)")
    add("--prefill", nargs="+", type=int, default=[512, 2048], metavar="TOKENS", help="prompt lengths (512 2048)")
    add("--prompt", type=int, default=512, help="prompt tokens of a sequence that decodes (%(default)s)")
    add("--new-tokens", type=int, default=64, help="tokens of each sequence that are timed (%(default)s)")
    add("--threads", type=int, default=2, help="of each engine (%(default)s)")
    add("--results", type=Path, default=Path("benchmarks/results"), metavar="FOLDER")
    add("--flags", nargs=argparse.REMAINDER, default=[], help="flags for our server; must come last")
    return parser.parse_args()


def _ready(names: Sequence[str]) -> list[Spec]:
    specs = []
    for name in dict.fromkeys(names):
        if missing := SPECS[name].missing():
            print(missing, file=sys.stderr)
        else:
            specs.append(SPECS[name])
    if not specs:
        raise SystemExit("none of the engines is set up; `make peers` does that")
    return specs


def _measure(specs: Sequence[Spec], arguments: argparse.Namespace) -> Measured:
    """All rounds; when interrupted, or when an engine fails, what is complete by then."""
    measured = Measured()
    plans = [_runs(arguments, number) for number in range(arguments.rounds)]
    working = list(specs)
    with tqdm(total=len(specs) * sum(map(len, plans)), unit="run") as bar:
        try:
            for number, runs in enumerate(plans, start=1):
                measured.machine.append(_machine(arguments.threads))
                for spec in list(working):
                    bar.set_description(f"round {number}, {spec.label}")
                    log = arguments.results / "logs" / f"{spec.name}-{number}.txt"
                    try:
                        report = work(spec, runs, arguments.threads, arguments.flags, log, bar.update)
                        measured.add(spec, report, arguments.new_tokens)
                    except (EngineFailed, ValueError) as error:
                        tqdm.write(f"{error}; it is left out from here on", file=sys.stderr)
                        working.remove(spec)
        except KeyboardInterrupt:
            tqdm.write("Stopped: what follows is of what was complete", file=sys.stderr)
    if not measured.rounds:
        raise SystemExit("nothing was measured")
    return measured


def _runs(arguments: argparse.Namespace, number: int) -> list[Run]:
    """What every engine does in round `number`: its prompts are those of no other run."""
    plan = [(COLD_START, 1, 16, 0), (_WARM_UP, 1, arguments.prompt, 8)]
    plan += [(prefill_key(tokens), 1, tokens, 0) for tokens in arguments.prefill for _ in range(_REPEATS)]
    plan += [(decode_key(count), count, arguments.prompt, arguments.new_tokens) for count in arguments.concurrency]
    return [
        Run(name, prompts(count, length, seed=1000 * number + place), new_tokens)
        for place, (name, count, length, new_tokens) in enumerate(plan)
    ]


def _machine(threads: int) -> Machine:
    command = [sys.executable, "-m", "benchmarks.machine", "--threads", str(threads)]
    return Machine(**json.loads(subprocess.run(command, check=True, capture_output=True).stdout))


def _limits(machines: Sequence[Machine], arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Per heading, what the machine allows with everything stored as that type."""
    config = prepare_model(None, default_cache_dir()) / "config.json"
    shape, machine = Shape.from_config(json.loads(config.read_text())), _best(machines)
    context = arguments.prompt + arguments.new_tokens // 2
    limits = {}
    for kind in _FORMATS:
        decode = {decode_key(n): decode_limit(shape, machine, kind, n, context) for n in arguments.concurrency}
        prefill = {prefill_key(n): prefill_limit(shape, machine, kind, n) for n in arguments.prefill}
        limits[f"limit, {kind}"] = decode | prefill
    return limits


def _best(machines: Sequence[Machine]) -> Machine:
    """The most that any round found: other work on the machine lowers figures, nothing raises them."""
    each = [asdict(machine) for machine in machines]
    return Machine(**{name: max(one[name] for one in each) for name in each[0]})


def _heading(spec: Spec) -> str:
    return spec.label if spec.peer is None else f"{spec.label} {spec.weights}"


def _setting(measured: Measured, headings: dict[str, str], arguments: argparse.Namespace) -> str:
    tokens = f"{arguments.prompt} + {arguments.new_tokens} tokens"
    said = f"{tokens}, {arguments.threads} threads, medians of {arguments.rounds} rounds"
    named = {headings[name]: rounds for name, rounds in measured.rounds.items()}
    return "; ".join([said, *reservations(named, arguments.rounds)])


def _tables(
    wanted: Sequence[Metric],
    measured: Measured,
    headings: dict[str, str],
    middle: dict[str, dict[str, float]],
    limits: dict[str, dict[str, float]],
    arguments: argparse.Namespace,
) -> str:
    machine = _best(measured.machine)
    parts = [
        f"{_setting(measured, headings, arguments)}. Flags: {' '.join(arguments.flags) or 'none'}",
        f"Machine: reads {machine.read / 1e9:.1f} GB/s; GEMM {machine.float32 / 1e9:,.0f} GFLOP/s in float32, "
        f"{machine.bfloat16 / 1e9:,.0f} in bfloat16, {machine.int8 / 1e9:,.0f} GOP/s in int8",
        median_table(wanted, middle, limits),
    ]
    for mine, others in _compared(measured, wanted).items():
        parts.append(f"{headings[mine]}, how many times as good as the peer in the same round:")
        parts.append(ratio_table(wanted, {headings[name]: values for name, values in others.items()}))
    return "\n\n".join(parts) + "\n"


def _compared(measured: Measured, wanted: Sequence[Metric]) -> dict[str, dict[str, dict[str, float]]]:
    """Ratios by our engine and peer."""
    ours: list[str] = []
    peers: list[str] = []
    for name in measured.rounds:
        (ours if SPECS[name].peer is None else peers).append(name)
    return {
        mine: {name: ratios(measured.rounds[mine], measured.rounds[name], wanted) for name in peers}
        for mine in ours
        if peers
    }


def _record(
    measured: Measured, limits: dict[str, dict[str, float]], arguments: argparse.Namespace
) -> dict[str, object]:
    settings = {name: value for name, value in vars(arguments).items() if name not in ("results", "engines")}
    engines = {
        name: {"version": measured.versions[name], "weights": SPECS[name].weights, "rounds": rounds}
        for name, rounds in measured.rounds.items()
    }
    return {
        **settings,
        "machine": [asdict(machine) for machine in measured.machine],
        "engines": engines,
        "limits": limits,
        "ratios": _compared(measured, metrics(arguments.concurrency, arguments.prefill)),
    }


if __name__ == "__main__":
    main()
