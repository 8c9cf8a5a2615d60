"""Starts an engine and has it generate a token: `python -m benchmarks.engines.trial NAME`."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.engines.catalog import SPECS
from benchmarks.engines.process import EngineFailed, work
from benchmarks.engines.protocol import COLD_START, Run


def main() -> None:
    """One line on success; a line that says where to look on failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=SPECS)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    spec = SPECS[arguments.engine]
    log = Path("benchmarks/results/logs", f"trial-{spec.name}.txt")
    print(f"Trying {spec.label}", flush=True)
    try:
        report = work(spec, [Run(COLD_START, [list(range(1000, 1016))], 1)], arguments.threads, [], log)
    except EngineFailed as error:
        raise SystemExit(str(error)) from error
    assert report.closing is not None
    seconds = report.outcomes[0].since_spawn
    print(f"{spec.label} {report.closing.version} brought tokens {seconds:.1f} s after its start")


if __name__ == "__main__":
    main()
