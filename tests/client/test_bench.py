"""The whole command against a scripted server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.responses import JSONResponse, PlainTextResponse

import client
from client.__main__ import main

Serve = Callable[..., Any]
Bench = Callable[..., Any]


@pytest.fixture
def good(wire: SimpleNamespace) -> Callable[[int], list[Any]]:
    """A script of four tokens at once."""
    return lambda n: [*(wire.text(" tok") for _ in range(4)), wire.text("", "length"), wire.usage(8, 4), wire.done]


def test_a_run_end_to_end(serve: Serve, bench: Bench, good: Any) -> None:
    server = serve(good)
    run = bench(server, "--num-prompts", "12", "--max-concurrency", "3", "--metric-percentiles", "50,90")
    assert run.status == 0
    result = run.result
    assert (result["completed"], result["failed"], result["num_prompts"]) == (12, 0, 12)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (96, 48)
    assert (result["model_id"], result["backend"], result["request_rate"]) == ("mock", "openai", "inf")
    assert result["max_concurrent_requests"] <= 3
    assert all(
        f"{name}_{metric}_ms" in result for name in ("mean", "p90") for metric in ("ttft", "tpot", "itl", "e2el")
    )
    assert all(len(gaps) == 3 for gaps in result["itls"])
    assert "Successful requests:                       12" in run.out
    assert "random, 12 requests, 8 tokens in, 4 out" in run.out
    assert all(body["model"] == "mock" and len(body["prompt"]) == 8 for body in server.bodies)
    assert len({tuple(body["prompt"]) for body in server.bodies}) == 12


def test_chat_with_delays(serve: Serve, bench: Bench, wire: SimpleNamespace) -> None:
    """Role at once, text after 0.2 s, then three tokens 50 ms apart."""
    role, token = wire.delta(role="assistant", content=""), wire.delta(content="hi ")
    steps = [role, 0.2, token, 0.05, token, 0.05, token, 0.05, token, wire.delta("stop"), wire.usage(30, 4), wire.done]
    server = serve(lambda n: steps)
    result = bench(server, "--backend", "openai-chat", "--num-prompts", "2", "--max-concurrency", "1").result
    assert result["mean_ttft_ms"] >= 199
    assert result["mean_e2el_ms"] >= 349
    assert result["total_input_tokens"] == 60
    assert [len(body["messages"][0]["content"].split()) for body in server.bodies] == [8, 8]


@pytest.mark.parametrize(("events", "per_event"), [(100, 1), (25, 4)])
def test_tokens_are_not_events(serve: Serve, bench: Bench, wire: SimpleNamespace, events: int, per_event: int) -> None:
    steps = [*([wire.text(" tok" * per_event), 0.001] * events), wire.text("", "length"), wire.usage(8, 100), wire.done]
    result = bench(serve(lambda n: steps), "--num-prompts", "1").result
    assert result["total_output_tokens"] == 100
    assert len(result["itls"][0]) == 99


def test_as_many_connections_as_requests_in_flight(serve: Serve, bench: Bench, wire: SimpleNamespace) -> None:
    """No request is answered before all 150 are there."""
    barrier = asyncio.Barrier(150)
    server = serve(lambda n: [wire.text("a"), barrier.wait, wire.text("b", "stop"), wire.done])
    run = bench(server, "--num-prompts", "150", "--max-concurrency", "150", "--request-timeout-sec", "60")
    assert run.result["completed"] == 150
    assert run.result["max_concurrent_requests"] == 150
    assert server.peak == 150


def test_connections_are_used_again(serve: Serve, bench: Bench, good: Any) -> None:
    server = serve(good)
    assert bench(server, "--num-prompts", "200", "--max-concurrency", "8").result["completed"] == 200
    assert len(server.clients) <= 16


def test_connections_can_be_cold(serve: Serve, bench: Bench, good: Any) -> None:
    server = serve(good)
    bench(server, "--num-prompts", "9", "--max-concurrency", "3", "--cold-connections")
    assert len(server.clients) == 9


def test_failures_are_counted_by_kind_and_never_retried(serve: Serve, bench: Bench, good: Any, wire: Any) -> None:
    def script(n: int) -> Any:
        if n % 4 == 1:
            return JSONResponse({"error": {"message": "slow down"}}, 429)
        if n % 4 == 2:
            return [wire.text("a"), wire.event({"error": {"message": "engine died"}}), wire.done]
        return good(n)

    server = serve(script)
    run = bench(server, "--num-prompts", "20", "--max-concurrency", "4")
    assert run.status == 1
    assert len(server.bodies) == 20
    assert (run.result["completed"], run.result["failed"]) == (10, 10)
    assert run.result["failures"] == {
        "http_429": {"count": 5, "example": "slow down"},
        "stream_error": {"count": 5, "example": "engine died"},
    }
    assert "5 http_429: slow down" in run.out


@pytest.mark.parametrize("load", ["--max-concurrency 2", "--sweep concurrency", "--target a={}"])
def test_status_1_when_one_request_of_many_fails(serve: Serve, bench: Bench, good: Any, load: str) -> None:
    """And 0 when the same load meets no failure."""
    flags = ["--num-prompts", "6", *load.split()]
    broken = serve(lambda n: PlainTextResponse("no", 500) if n == 3 else good(n))
    run = bench(broken, *flags)
    assert run.status == 1
    assert "1 http_500: no" in run.out
    assert run.result
    assert bench(serve(good), *flags).status == 0


def test_status_1_when_the_time_is_up_before_anything_was_sent(serve: Serve, bench: Bench, good: Any) -> None:
    server = serve(good)
    run = bench(server, "--num-prompts", "3", "--time-limit", "1e-9")
    assert (run.status, server.bodies) == (1, [])


def test_status_0_when_the_time_is_up_and_nothing_failed(serve: Serve, bench: Bench, good: Any) -> None:
    run = bench(serve(good), "--num-prompts", "9", "--request-rate", "4", "--burstiness", "1e6", "--time-limit", "0.5")
    assert run.status == 0
    assert 0 < run.result["completed"] < 9


def test_status_1_when_nothing_succeeds(serve: Serve, bench: Bench) -> None:
    server = serve(lambda n: PlainTextResponse("no", 500))
    run = bench(server, "--num-prompts", "3")
    assert run.status == 1
    assert len(server.bodies) == 3
    assert run.result["mean_ttft_ms"] is None
    assert "3 http_500: no" in run.out


def test_request_ids_differ_within_and_between_runs(serve: Serve, bench: Bench, good: Any) -> None:
    server = serve(good)
    bench(server, "--num-prompts", "5")
    bench(server, "--num-prompts", "5")
    assert len({headers["x-request-id"] for headers in server.headers}) == 10


def test_headers_key_and_body_fields_arrive(serve: Serve, bench: Bench, good: Any) -> None:
    server = serve(good)
    flags = ["--model", "given", "--api-key", "k", "--header", "X-Team=a", "--temperature", "0", "--ignore-eos"]
    bench(server, "--num-prompts", "1", *flags, "--extra-body", '{"top_p": 0.5}')
    (body,), (headers,) = server.bodies, server.headers
    assert (body["model"], body["temperature"], body["ignore_eos"], body["top_p"]) == ("given", 0, True, 0.5)
    assert body["stream_options"] == {"include_usage": True}
    assert (headers["authorization"], headers["x-team"]) == ("Bearer k", "a")


def test_sampling_goes_into_the_body(serve: Serve, bench: Bench, good: Any) -> None:
    server = serve(good)
    asked = {"top_p": 0.9, "top_k": 40, "min_p": 0.1, "frequency_penalty": -0.5, "presence_penalty": 0.5}
    asked |= {"repetition_penalty": 1.1, "logprobs": 2}
    flags = [text for name, value in asked.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    bench(server, "--num-prompts", "1", *flags)
    assert server.bodies[0].items() >= asked.items()
    bench(server, "--num-prompts", "1")
    assert not server.bodies[1].keys() & asked.keys()


def test_the_name_that_the_server_has_for_its_model(serve: Serve, bench: Bench, good: Any) -> None:
    server = serve(good)
    result = bench(server, "--num-prompts", "1", "--model", "/models/a", "--served-model-name", "a").result
    assert (server.bodies[0]["model"], result["model_id"]) == ("a", "a")


def test_request_ids_begin_as_asked_and_differ_all_the_same(serve: Serve, bench: Bench, good: Any) -> None:
    server = serve(good)
    for _ in range(2):
        bench(server, "--num-prompts", "3", "--num-warmups", "1", "--request-id-prefix", "mine-")
    ids = {headers["x-request-id"] for headers in server.headers}
    assert len(ids) == 8
    assert all(one.startswith("mine-") for one in ids)


def test_prompts_may_begin_alike(serve: Serve, bench: Bench, good: Any) -> None:
    server = serve(good)
    bench(server, "--num-prompts", "3", "--random-prefix-len", "5")
    prompts = [body["prompt"] for body in server.bodies]
    assert [len(prompt) for prompt in prompts] == [13] * 3
    assert len({tuple(prompt[:5]) for prompt in prompts}) == 1
    assert len({tuple(prompt[5:]) for prompt in prompts}) == 3


def test_results_can_be_gathered_in_one_file(serve: Serve, bench: Bench, good: Any, tmp_path: Path) -> None:
    flags = ["--num-prompts", "1", "--append-result", "--result-filename", "all.jsonl"]
    for label in ("first", "second"):
        bench(serve(good), *flags, "--label", label)
    lines = (tmp_path / "all.jsonl").read_text().splitlines()
    assert [json.loads(line)["label"] for line in lines] == ["first", "second"]


def test_the_timeline_lies_beside_the_result(serve: Serve, good: Any, tmp_path: Path) -> None:
    flags = ["--num-prompts", "3", "--result-dir", str(tmp_path), "--result-filename", "run.json", "--plot-timeline"]
    assert main(["--base-url", serve(good).url, *flags]) == 0
    assert {file.name for file in tmp_path.iterdir()} == {"run.json", "run.timeline.html"}
    assert "Each request: waiting" in (tmp_path / "run.timeline.html").read_text()


def test_warm_up_requests_are_other_prompts_and_not_counted(serve: Serve, bench: Bench, good: Any) -> None:
    server = serve(good)
    assert bench(server, "--num-prompts", "4", "--num-warmups", "3").result["completed"] == 4
    assert len({tuple(body["prompt"]) for body in server.bodies}) == 7


def test_a_rate_spreads_the_requests(serve: Serve, bench: Bench, good: Any) -> None:
    result = bench(serve(good), "--num-prompts", "10", "--request-rate", "50", "--burstiness", "1e6").result
    starts = sorted(result["start_times"])
    assert all(start >= i / 50 - 0.005 for i, start in enumerate(starts))
    assert result["request_rate"] == 50


def test_text_prompts(serve: Serve, bench: Bench, good: Any, tokenizer: Path) -> None:
    book = tokenizer / "book.txt"
    book.write_text(" ".join(f"w{i}" for i in range(500)))
    server = serve(good)
    flags = ["--dataset-name", "text", "--dataset-path", str(book), "--num-prompts", "2"]
    assert bench(server, *flags).status == 0
    assert bench(server, *flags, "--tokenizer", str(tokenizer)).status == 0
    assert [type(body["prompt"]) for body in server.bodies] == [str, str, list, list]
    assert all(body["prompt"] == [0] * 8 for body in server.bodies[2:])


def test_the_tokenizer_counts_where_usage_is_missing(serve: Serve, bench: Bench, wire: Any, tokenizer: Path) -> None:
    server = serve(lambda n: [wire.text("one two "), wire.text("three", "stop"), wire.done])
    run = bench(server, "--num-prompts", "1", "--tokenizer", str(tokenizer))
    assert run.result["total_output_tokens"] == 3
    assert "counted with the tokenizer" in run.out


def test_waits_for_a_server_that_is_loading(
    serve: Serve, bench: Bench, good: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client.probe.PROBE_EVERY_S", 0.01)
    server = serve(good)
    ready = server.models()
    answers = iter([JSONResponse({"error": {"message": "loading"}}, 503)] * 2)
    server.models = lambda: next(answers, ready)
    assert bench(server, "--num-prompts", "1", "--ready-check-timeout-sec", "60").status == 0


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (JSONResponse({"error": {"message": "loading"}}, 503), "answers 503 (loading): start the server"),
        (JSONResponse({"error": "Unauthorized"}, 401), "answered 401: give a valid --api-key"),
        (JSONResponse({"detail": "Not Found"}, 404), "answered 404, which names no model: give --model"),
        (JSONResponse({"data": []}), "answered 200, which names no model: give --model"),
    ],
)
def test_a_server_that_names_no_model(serve: Serve, bench: Bench, good: Any, models: Any, message: str) -> None:
    server = serve(good)
    server.models = lambda: models
    run = bench(server)
    assert run.status == 1
    assert run.err.startswith("scissorserve-bench: error: ")
    assert run.err.count("\n") == 1
    assert message in run.err
    assert not server.bodies


def test_nobody_listens(dead_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--base-url", dead_url, "--model", "m"]) == 1
    assert f"cannot reach {dead_url}/v1/models" in capsys.readouterr().err


def test_a_result_folder_that_cannot_be_made(serve: Serve, bench: Bench, good: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    server = serve(good)
    run = bench(server, "--num-prompts", "1", "--result-dir", str(tmp_path / "file" / "below"))
    assert (run.status, server.bodies) == (1, [])
    assert "--result-dir: cannot create" in run.err


def test_the_default_file_name_tells_the_load(serve: Serve, good: Any, tmp_path: Path) -> None:
    server = serve(good)
    flags = ["--base-url", server.url, "--model", "org/name", "--num-prompts", "1", "--max-concurrency", "2"]
    assert main([*flags, "--result-dir", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("*.json")
    assert file.name.startswith("openai-infqps-concurrency2-name-2")
    assert "itls" not in json.loads(file.read_text())


def test_nothing_is_saved_unless_asked(
    serve: Serve, good: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--base-url", serve(good).url, "--num-prompts", "1"]) == 0
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_with_what_was_measured(serve: Serve, good: Any, tmp_path: Path, stop: int) -> None:
    """Five answers, then a server that is stuck, then Ctrl-C or `docker stop`."""
    file = tmp_path / "partial.json"
    stuck = threading.Event()

    async def hang() -> None:
        stuck.set()
        await asyncio.sleep(30)

    server = serve(lambda n: good(n) if n < 5 else [hang])
    flags = ["--base-url", server.url, "--num-prompts", "9", "--max-concurrency", "1"]
    command = [sys.executable, "-m", "client", *flags, "--result-dir", str(tmp_path), "--result-filename", file.name]
    root = Path(client.__file__).parents[1]
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert stuck.wait(30)
    os.kill(process.pid, stop)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "Successful requests:                        5" in out
    assert "Interrupted: 5 of 9 requests had finished" in out
    assert json.loads(file.read_text())["interrupted"] is True
