"""Flags: what they mean, and the one line that a mistake gets."""

from __future__ import annotations

import pytest

from client.cli import parse_options


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def test_defaults() -> None:
    options = parse_options([])
    (target,) = options.server.targets
    assert target.url(options.server.path) == "http://127.0.0.1:8000/v1/completions"
    assert options.requests.num_prompts == 100
    assert options.load.max_concurrency is None
    assert options.report.percentile_metrics == ("ttft", "tpot", "itl", "e2el")
    assert options.report.metric_percentiles == (99.0,)
    assert options.server.headers == {}


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
    server = parse_options(flags).server
    assert [target.url(server.path) for target in server.targets] == [url]


def test_where_metrics_are() -> None:
    (target,) = parse_options(["--base-url", "http://h:1/v1/"]).server.targets
    assert target.metrics_url == "http://h:1/metrics"


def test_targets_have_a_url_or_fields_or_both() -> None:
    flags = ["--base-url", "http://h:1", "--target", "a=http://a:2", "--target", 'b={"kv_budget": 0.2}']
    targets = parse_options([*flags, "--target", 'c=https://c:3/v1 {"x": [1]}']).server.targets
    assert [(one.name, one.base_url, one.extra_body) for one in targets] == [
        ("a", "http://a:2", {}),
        ("b", "http://h:1", {"kv_budget": 0.2}),
        ("c", "https://c:3/v1", {"x": [1]}),
    ]


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ([], "burst"),
        (["--max-concurrency", "3"], "concurrency"),
        (["--max-concurrency", "3", "--request-rate", "inf"], "concurrency"),
        (["--request-rate", "2", "--max-concurrency", "3"], "gamma"),
        (["--request-rate", "2", "--burstiness", "0.5"], "gamma"),
        (["--ramp-up-strategy", "linear", "--ramp-up-start-rps", "1", "--ramp-up-end-rps", "9"], "ramp"),
        (["--dataset-name", "trace"], "trace"),
        (["--dataset-name", "trace", "--request-rate", "2"], "gamma"),
        (["--request-rate", "2", "--arrival", "constant"], "constant"),
    ],
)
def test_the_flags_of_vllm_imply_the_arrival(flags: list[str], name: str) -> None:
    assert parse_options(flags).arrival_name == name


@pytest.mark.parametrize("name", ["prefix-repetition", "prefix_repetition"])
def test_datasets_have_their_own_flags_and_one_in_common(name: str) -> None:
    flags = ["--dataset-name", name, "--prefix-repetition-num-prefixes", "3", "--output-len", "7"]
    dataset = parse_options(flags).dataset
    assert (vars(dataset)["num_prefixes"], vars(dataset)["output_len"]) == (3, 7)
    assert vars(parse_options(["--random-output-len", "9"]).dataset)["output_len"] == 9
    assert vars(parse_options(["--dataset-name", "facts"]).dataset)["output_len"] == 16


def test_the_key_comes_from_the_flag_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from-env\n")
    assert parse_options([]).server.headers == {"Authorization": "Bearer from-env"}
    assert parse_options(["--api-key", "given"]).server.headers == {"Authorization": "Bearer given"}


def test_a_key_that_cannot_be_sent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "schlüssel")
    with pytest.raises(SystemExit):
        parse_options([])
    assert "$OPENAI_API_KEY must be printable ASCII" in capsys.readouterr().err


def test_the_key_is_not_in_the_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    with pytest.raises(SystemExit) as stop:
        parse_options(["--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert "--max-concurrency" in shown
    assert "secret-key" not in shown


@pytest.mark.parametrize(
    ("flags", "url"),
    [
        ([], "http://127.0.0.1:8000"),
        (["--port", "81"], "http://127.0.0.1:81"),
        (["--host", "there"], "http://there:8000"),
        (["--host", "::1", "--port", "81"], "http://[::1]:81"),
        (["--base-url", "https://there/v1"], "https://there/v1"),
    ],
)
def test_the_server_can_be_named_in_parts(flags: list[str], url: str) -> None:
    assert parse_options(flags).server.base_url == url


def test_headers_repeat() -> None:
    assert parse_options(["--header", "A=1", "B=x=y", "--header", "C="]).server.headers == {
        "A": "1",
        "B": "x=y",
        "C": "",
    }


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
        (["--base-url", "http://a", "--port", "1"], "--host and --port say what --base-url says"),
        (["--host", "http://a"], "--host: 'http://a' must be a host alone"),
        (["--host", "a/b"], "--host: 'a/b' must be a host alone"),
        (["--port", "65536"], "--port: '65536' must be at most 65535"),
        (["--top-k", "0.5"], "--top-k: '0.5' must be a whole number from -1 on"),
        (["--disable-shuffle"], "--disable-shuffle is only read with --dataset-name custom, sharegpt"),
        (["--request-id-prefix", "ü"], "--request-id-prefix: must be printable ASCII"),
        (["--extra-body", "{"], "--extra-body: no JSON"),
        (["--extra-body", "[]"], "--extra-body: must be a JSON object"),
        (["--header", "no equals"], "--header: 'no equals' must be NAME=VALUE"),
        (["--header", "A=ü"], "--header: must be printable ASCII"),
        (["--api-key", "two\nlines"], "--api-key: must be printable ASCII"),
        (["--percentile-metrics", "ttft,speed"], "'speed' is none of ttft,"),
        (["--metric-percentiles", "50,101"], "'50,101' must be numbers from 0 to 100"),
        (["--metric-percentiles", "p99"], "'p99' must be numbers from 0 to 100"),
        (["--dataset-name", "books"], "--dataset-name: 'books' is none of custom, facts, multi-turn,"),
        (["--arrival", "late"], "--arrival: 'late' is none of burst, concurrency,"),
        (["--arrival", "concurrency"], "--arrival concurrency needs --max-concurrency N"),
        (
            ["--dataset-path", "x.txt"],
            "--dataset-path is only read with --dataset-name custom, facts, sharegpt, text, trace",
        ),
        (["--burstiness", "2"], "--burstiness is only read with --arrival gamma"),
        (["--goodput", "itl:5"], "--goodput: 'itl:5' must be like ttft:200"),
        (["--goodput", "ttft:fast"], "--goodput: 'fast' must be a number above 0"),
        (["--target", "http://h:1"], "--target: 'http://h:1' must be NAME=URL"),
        (["--target", "a=[1]"], "--target: '[1]' must be like http://127.0.0.1:8000"),
        (["--target", "a={"], "--target: no JSON"),
        (["--target", "a=http://h:1", "--target", "a=http://h:2"], "each --target needs a NAME of its own"),
        (["--metadata", "x"], "--metadata: 'x' must be KEY=VALUE"),
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
