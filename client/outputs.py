"""The files that a run leaves behind."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from client.errors import BenchError
from client.experiment import Run
from client.options import Options
from client.reports.page import result_page
from client.reports.result import result_json
from client.reports.rows import result_csv


class Outputs:
    """Knows where files go. Raises BenchError if there is no folder for them."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._folder = options.report.result_dir or Path()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BenchError(f"--result-dir: cannot create {self._folder}: {error.strerror}") from error

    def save(self, runs: Sequence[Run]) -> None:
        """Writes what was asked for. Raises BenchError if a file cannot be written."""
        report = self._options.report
        name = report.result_filename or self._default_name(runs[0])
        if self._keeps_result:
            result = result_json(runs, self._options)
            if report.append_result:
                self._write(name, json.dumps(result, allow_nan=False) + "\n", append=True)
            else:
                self._write(name, json.dumps(result, indent=2, allow_nan=False) + "\n")
        if report.plot_timeline:
            self._write(str(Path(name).with_suffix(".timeline.html")), result_page(runs, self._options))
        if report.result_csv:
            self._write(report.result_csv, result_csv(runs))
        if report.result_html:
            self._write(report.result_html, result_page(runs, self._options))

    @property
    def _keeps_result(self) -> bool:
        report = self._options.report
        wanted = report.save_result or report.save_detailed or report.append_result or report.plot_timeline
        return wanted or report.result_dir is not None or report.result_filename is not None

    def _default_name(self, run: Run) -> str:
        rate = getattr(run.level.arrival, "request_rate", float("inf"))
        limit = f"-concurrency{run.level.concurrency}" if run.level.concurrency else ""
        pace = f"{rate:g}qps{limit}" if self._options.load.sweep is None else f"{self._options.load.sweep}-sweep"
        model = run.target.model.rstrip("/").rsplit("/", 1)[-1]
        return f"{self._options.server.backend}-{pace}-{model}-{run.date:%Y%m%d-%H%M%S}.json"

    def _write(self, name: str, text: str, *, append: bool = False) -> None:
        path = self._folder / name
        try:
            with path.open("a" if append else "w", encoding="utf-8", newline="") as file:
                file.write(text)
        except OSError as error:
            raise BenchError(
                f"cannot write {path}: {error.strerror}; take another --result-dir or another name"
            ) from error
        print(f"Result: {path}", file=sys.stderr)
