"""Conversations, comparisons, sweeps, time limits and what is kept of them: the whole command again."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.responses import JSONResponse, PlainTextResponse

from client.__main__ import main

Serve = Callable[..., Any]
Bench = Callable[..., Any]


@pytest.fixture
def good(wire: SimpleNamespace) -> Callable[[int], list[Any]]:
    """A script of four tokens, 5 ms apart."""
    return lambda n: [*([wire.text(" tok"), 0.005] * 4), wire.text("", "length"), wire.usage(8, 4), wire.done]


def test_a_conversation_brings_along_what_was_said(serve: Serve, bench: Bench, wire: Any) -> None:
    answer = [wire.delta(role="assistant", content=""), wire.delta(content="hm"), wire.delta("stop"), wire.done]
    server = serve(lambda n: answer)
    flags = ["--backend", "openai-chat", "--dataset-name", "multi-turn", "--num-turns", "3", "--max-concurrency", "2"]
    result = bench(server, *flags, "--num-prompts", "4").result
    assert (result["completed"], result["planned"]) == (12, 12)
    lengths = sorted(len(body["messages"]) for body in server.bodies)
    assert lengths == [1] * 4 + [3] * 4 + [5] * 4
    longest = [body["messages"] for body in server.bodies if len(body["messages"]) == 5]
    shorter = [body["messages"] for body in server.bodies if len(body["messages"]) == 3]
    assert all(messages[:3] in shorter for messages in longest)
    assert all(messages[1] == {"role": "assistant", "content": "hm"} for messages in longest)
    assert len({headers["x-request-id"] for headers in server.headers}) == 12


def test_planted_facts_are_checked(serve: Serve, bench: Bench, wire: Any) -> None:
    """Every other answer repeats what it was asked for."""
    server = serve(lambda n: [wire.text("no idea", "stop"), wire.done])
    plain = server.script

    def script(n: int) -> list[Any]:
        if n % 2:
            return plain(n)
        prompt = server.bodies[-1]["prompt"]
        town = prompt.rsplit("town ", 1)[1].removesuffix(" is")
        number = re.search(rf"town {town} is (\d+)\.", prompt)
        assert number is not None
        return [wire.text(f" {number[1]}.", "stop"), wire.done]

    server.script = script
    run = bench(server, "--dataset-name", "facts", "--input-len", "200", "--num-prompts", "6", "--max-concurrency", "1")
    assert (run.result["answers_checked"], run.result["answers_right"]) == (6, 3)
    assert re.search(r"Right answers: +3/6", run.out)


def test_goodput(serve: Serve, bench: Bench, wire: Any) -> None:
    """Every third request takes longer than it may."""
    server = serve(lambda n: [*([0.4] if n % 3 == 0 else []), wire.text("a", "stop"), wire.done])
    run = bench(server, "--num-prompts", "6", "--max-concurrency", "1", "--goodput", "ttft:300", "e2el:9999")
    assert run.result["request_goodput"] == pytest.approx(run.result["request_throughput"] * 4 / 6)
    assert run.result["goodput_objectives_ms"] == {"ttft": 300, "e2el": 9999}
    assert "Request goodput (req/s)" in run.out


def test_targets_take_turns_with_the_same_requests(serve: Serve, bench: Bench, good: Any) -> None:
    first, second = serve(good), serve(good)
    order: list[str] = []
    for name, server in (("a", first), ("b", second)):
        server.script = lambda n, name=name: (order.append(name), good(n))[1]
    flags = ["--target", f"a={first.url}", "--target", f'b={second.url} {{"kv_budget": 0.2, "model": "small"}}']
    run = bench(first, *flags, "--num-prompts", "12", "--max-concurrency", "2", "--rounds", "3")
    turns = [(name, len(list(group))) for name, group in itertools.groupby(order)]
    assert turns == [("a", 4), ("b", 8), ("a", 8), ("b", 4)]
    assert [body["prompt"] for body in first.bodies] == [body["prompt"] for body in second.bodies]
    assert all((body["kv_budget"], body["model"]) == (0.2, "small") for body in second.bodies)
    assert all("kv_budget" not in body and body["model"] == "mock" for body in first.bodies)
    assert [(one["target"], one["completed"]) for one in run.result["runs"]] == [("a", 12), ("b", 12)]
    assert "b generates" in run.out


def test_a_sweep_goes_through_the_levels_with_new_prompts_each(serve: Serve, bench: Bench, good: Any) -> None:
    server = serve(good)
    run = bench(server, "--sweep", "concurrency", "--max-concurrency", "3", "--num-prompts", "12")
    assert [one["max_concurrency"] for one in run.result["runs"]] == [1, 2, 3]
    assert server.peak == 3
    assert len({tuple(body["prompt"]) for body in server.bodies}) == 36
    assert "Generates most with" in run.out


def test_a_sweep_ends_at_once_where_the_service_levels_are_missed(serve: Serve, bench: Bench, good: Any) -> None:
    flags = ["--sweep", "rate", "--sweep-start", "50", "--num-prompts", "5", "--goodput", "e2el:1"]
    assert [one["request_rate"] for one in bench(serve(good), *flags).result["runs"]] == [50]


def test_after_the_time_limit_the_rest_is_not_sent(serve: Serve, bench: Bench, wire: Any) -> None:
    server = serve(lambda n: [0.2, wire.text("a", "stop"), wire.done])
    run = bench(server, "--num-prompts", "50", "--max-concurrency", "1", "--time-limit", "0.3")
    assert run.status == 0
    assert 1 <= run.result["completed"] <= 2
    assert run.result["completed"] + run.result["unsent"] == 50
    assert "Time limit:" in run.out


def test_the_server_is_watched_through_its_metrics(serve: Serve, bench: Bench, wire: Any) -> None:
    server = serve(lambda n: [0.4, wire.text("a", "stop"), wire.done])
    ticks = itertools.count(1)

    def metrics() -> PlainTextResponse:
        n = next(ticks)
        return PlainTextResponse(
            "# HELP vllm:num_requests_running x\n# TYPE vllm:num_requests_running gauge\n"
            f'vllm:num_requests_running{{engine="0"}} {n}\nvllm:num_requests_running{{engine="1"}} 1\n'
            f"other_metric 5\nscissorserve:kv_pages_freed_total {100 + n * 10}\n"
        )

    server.metrics = metrics
    result = bench(server, "--num-prompts", "2", "--max-concurrency", "1", "--metrics-interval", "0.05").result
    asked = next(ticks) - 1
    assert asked >= 6
    assert result["server_metrics"]["running_max"] == asked + 1
    assert result["server_metrics"]["pages_freed"] == (asked - 1) * 10
    assert "kv_usage_max" not in result["server_metrics"]


def test_of_a_common_server_each_target_is_told_what_happened_in_its_own_turns(
    serve: Serve, bench: Bench, good: Any
) -> None:
    """Each request frees a page, and each of the first target's nine more."""
    server = serve(good)

    def metrics() -> PlainTextResponse:
        freed = sum(10 if body["x"] == 1 else 1 for body in server.bodies)
        return PlainTextResponse(f"scissorserve:kv_pages_freed_total {freed}\n")

    server.metrics = metrics
    flags = ["--target", 'a={"x": 1}', "--target", 'b={"x": 2}', "--num-prompts", "6", "--max-concurrency", "1"]
    runs = bench(server, *flags, "--metrics-interval", "0.01").result["runs"]
    assert [run["server_metrics"]["pages_freed"] for run in runs] == [60, 6]


def test_a_server_without_metrics_is_asked_once(serve: Serve, bench: Bench, good: Any) -> None:
    server = serve(good)
    asked: list[int] = []
    server.metrics = lambda: (asked.append(0), PlainTextResponse("no", 404))[1]
    flags = ["--num-prompts", "20", "--max-concurrency", "1", "--metrics-interval", "0.01"]
    assert bench(server, *flags).result["server_metrics"] == {}
    assert len(asked) == 1


def test_a_line_for_every_request(serve: Serve, bench: Bench, good: Any, tmp_path: Path) -> None:
    server = serve(lambda n: JSONResponse({"error": {"message": "full, sorry"}}, 503) if n == 1 else good(n))
    bench(server, "--num-prompts", "4", "--max-concurrency", "1", "--result-csv", "rows.csv", "--goodput", "ttft:9999")
    rows = list(csv.DictReader((tmp_path / "rows.csv").read_text().splitlines()))
    assert [row["failure"] for row in rows] == ["", "http_503", "", ""]
    assert [row["good"] for row in rows] == ["1", "0", "1", "1"]
    assert rows[1]["message"] == "full, sorry"
    assert all(float(row["ttft_ms"]) < float(row["e2el_ms"]) for row in rows if not row["failure"])
    assert [row["output_tokens"] for row in rows] == ["4", "0", "4", "4"]


def test_what_was_written_can_be_replayed(serve: Serve, bench: Bench, good: Any, tmp_path: Path) -> None:
    server = serve(good)
    bench(server, "--num-prompts", "4", "--request-rate", "100", "--result-csv", "rows.csv")
    dues = [float(row["due_s"]) for row in csv.DictReader((tmp_path / "rows.csv").read_text().splitlines())]
    flags = ["--base-url", server.url, "--dataset-name", "trace", "--dataset-path", str(tmp_path / "rows.csv")]
    assert replay([*flags, "--trace-speed", "2"], tmp_path) == pytest.approx(
        [(due - dues[0]) / 2 for due in dues], abs=0.02
    )
    assert [len(body["prompt"]) for body in server.bodies[4:]] == [8] * 4


def replay(flags: list[str], folder: Path) -> list[float]:
    """When the requests of another run were due."""
    assert main([*flags, "--result-dir", str(folder), "--result-csv", "again.csv"]) == 0
    return [float(row["due_s"]) for row in csv.DictReader((folder / "again.csv").read_text().splitlines())]


class Page(HTMLParser):
    """Checks that elements are closed in order, and collects what the page would load, and its plots."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.plots: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.loads += [str(given[name]) for name in ("src", "href", "srcset") if name in given]
        if tag == "svg":
            self.plots.append(str(given["aria-label"]))
        if tag not in ("meta", "br", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing(serve: Serve, bench: Bench, good: Any, tmp_path: Path) -> None:
    server = serve(good)
    server.metrics = lambda: PlainTextResponse("vllm:kv_cache_usage_perc 0.5\n")
    flags = ["--num-prompts", "8", "--max-concurrency", "2", "--metrics-interval", "0.02", "--label", "<b>mine</b>"]
    bench(server, *flags, "--model", "<script>x", "--metadata", "host=a&b", "--result-html", "page.html")
    text = (tmp_path / "page.html").read_text()
    page = Page(text)
    assert page.open == []
    assert page.loads == []
    assert not re.search(r"url\(|@import|https?://(?!127\.0\.0\.1|www\.w3\.org)", text)
    assert "&lt;b&gt;mine&lt;/b&gt;" in text
    assert "<script>x" not in text
    assert "a&amp;b" in text
    assert page.plots == [
        "Time to first token (TTFT)",
        "Time per output token (TPOT)",
        "Inter-token latency (ITL)",
        "End-to-end latency (E2EL)",
        "Output tokens",
        "Requests in flight",
        "Wait for the first token",
        "Each request: waiting (grey), then writing",
        "KV cache in use",
    ]


def test_the_page_of_a_sweep_shows_load_against_throughput(
    serve: Serve, bench: Bench, good: Any, tmp_path: Path
) -> None:
    flags = ["--sweep", "concurrency", "--sweep-steps", "3", "--num-prompts", "4", "--result-html", "page.html"]
    bench(serve(good), *flags)
    page = Page((tmp_path / "page.html").read_text())
    assert page.plots[0] == "Throughput"
    assert "3 runs" in (tmp_path / "page.html").read_text()


def test_the_page_of_a_run_in_which_nothing_succeeded(serve: Serve, bench: Bench, tmp_path: Path) -> None:
    server = serve(lambda n: PlainTextResponse("<oops>", 500))
    assert bench(server, "--num-prompts", "2", "--result-html", "page.html").status == 1
    text = (tmp_path / "page.html").read_text()
    assert Page(text).open == []
    assert "http_500" in text
    assert "&lt;oops&gt;" in text


def test_metadata_and_label_are_kept(serve: Serve, bench: Bench, good: Any) -> None:
    flags = ["--num-prompts", "1", "--label", "night run", "--metadata", "gpu=none", "kernel=6.1"]
    result = bench(serve(good), *flags).result
    assert (result["label"], result["gpu"], result["kernel"]) == ("night run", "none", "6.1")


def test_options_that_only_fail_later_fail_before_the_first_request(
    serve: Serve, bench: Bench, good: Any, tmp_path: Path
) -> None:
    server = serve(good)
    for flags in (["--arrival", "poisson"], ["--dataset-name", "text"], ["--arrival", "trace"]):
        run = bench(server, *flags)
        assert run.status == 1
        assert run.err.startswith("scissorserve-bench: error: ")
        assert run.err.count("\n") == 1
    assert server.bodies == []
