"""Flags: what they mean, and the one line that a mistake gets."""

from __future__ import annotations

import math

import pytest

from client.cli import parse_options


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def test_defaults() -> None:
    options = parse_options([])
    assert options.url() == "http://127.0.0.1:8000/v1/completions"
    assert options.request_rate == math.inf
    assert options.max_concurrency is None
    assert options.percentile_metrics == ["ttft", "tpot", "itl", "e2el"]
    assert options.metric_percentiles == [99.0]
    assert options.headers == {}


@pytest.mark.parametrize(
    ("flags", "url"),
    [
        (["--backend", "openai-chat"], "http://127.0.0.1:8000/v1/chat/completions"),
        (["--base-url", "http://h:1/v1/"], "http://h:1/v1/completions"),
        (["--base-url", "https://h/api/v1"], "https://h/api/v1/completions"),
        (["--base-url", "http://h:1/v1", "--endpoint", "generate"], "http://h:1/v1/generate"),
    ],
)
def test_where_requests_go(flags: list[str], url: str) -> None:
    assert parse_options(flags).url() == url


def test_the_key_comes_from_the_flag_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from-env\n")
    assert parse_options([]).headers == {"Authorization": "Bearer from-env"}
    assert parse_options(["--api-key", "given"]).headers == {"Authorization": "Bearer given"}


def test_the_key_is_not_in_the_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    with pytest.raises(SystemExit) as stop:
        parse_options(["--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert "--max-concurrency" in shown
    assert "secret-key" not in shown


def test_headers_repeat() -> None:
    assert parse_options(["--header", "A=1", "B=x=y", "--header", "C="]).headers == {"A": "1", "B": "x=y", "C": ""}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num-prompts", "0"], "--num-prompts: '0' must be a whole number from 1 on"),
        (["--max-concurrency", "2.5"], "--max-concurrency: '2.5' must be a whole number from 1 on"),
        (["--request-rate", "0"], "--request-rate: '0' must be a number above 0"),
        (["--request-rate", "nan"], "--request-rate: 'nan' must be a number above 0"),
        (["--burstiness", "inf"], "--burstiness: 'inf' must be a number above 0"),
        (["--random-range-ratio", "1"], "--random-range-ratio: '1' must be a number at least 0 and below 1"),
        (["--base-url", "localhost:8000"], "'localhost:8000' must be like http://127.0.0.1:8000"),
        (["--base-url", "http://a:b"], "'http://a:b' is no URL"),
        (["--extra-body", "{"], "--extra-body: no JSON"),
        (["--extra-body", "[]"], "--extra-body: must be a JSON object"),
        (["--header", "no equals"], "--header: 'no equals' must be NAME=VALUE"),
        (["--header", "A=ü"], "--header: must be printable ASCII"),
        (["--api-key", "two\nlines"], "--api-key: must be printable ASCII"),
        (["--percentile-metrics", "ttft,speed"], "'speed' is none of ttft,"),
        (["--metric-percentiles", "50,101"], "'50,101' must be numbers from 0 to 100"),
        (["--metric-percentiles", "p99"], "'p99' must be numbers from 0 to 100"),
        (["--dataset-name", "text"], "--dataset-name text needs --dataset-path FILE"),
        (["--dataset-path", "x.txt"], "--dataset-path is only read with --dataset-name text"),
        (["--num-promts", "3"], "unrecognized arguments: --num-promts 3"),
    ],
)
def test_a_mistake_gets_one_line(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse_options(flags)
    assert stop.value.code == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
