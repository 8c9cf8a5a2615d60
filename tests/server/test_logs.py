"""Log lines cannot be forged and hold nobody's text."""

from __future__ import annotations

import io
import json
import logging
import logging.config
import re
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

import httpx
import pytest

from server.json_logs import JSONFormatter
from server.logs import NoProbes, OneLineFormatter, log_config
from tests.server.stack import Live, Model, Stack, eventually

EVIL = "x\r\n2026-01-01 00:00:00,000 INFO root: all is well\x1b[31m\u2028\x85"
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ [\w.]+: [^\x00-\x1f\x7f-\x9f\u2028\u2029]*")


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What a handler with the server's formatter writes of everything."""
    with everything(OneLineFormatter(log_config("info")["formatters"]["text"]["format"])) as text:
        yield text


@pytest.fixture
def json_log() -> Iterator[io.StringIO]:
    """The same with `--log-format json`."""
    with everything(JSONFormatter()) as text:
        yield text


@contextmanager
def everything(formatter: logging.Formatter) -> Iterator[io.StringIO]:
    """What is logged meanwhile, as `formatter` puts it."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield text
    root.removeHandler(handler)
    root.setLevel(level)


def test_a_record_is_one_line(log: io.StringIO) -> None:
    logging.getLogger("some.part").info("got %s", EVIL)
    assert LINE.fullmatch(log.getvalue().removesuffix("\n"))
    assert "\\r\\n" in log.getvalue()


def test_a_traceback_is_indented(log: io.StringIO) -> None:
    try:
        raise ValueError(EVIL)
    except ValueError:
        logging.getLogger("some.part").exception("failed")
    first, *rest = log.getvalue().removesuffix("\n").split("\n")
    assert LINE.fullmatch(first)
    assert all(line.startswith("    ") for line in rest)
    assert "\x1b" not in log.getvalue()


def test_the_configuration_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    applied = logging.config.DictConfigurator(log_config("trace"))
    assert isinstance(applied.configure_formatter(applied.config["formatters"]["text"]), OneLineFormatter)
    assert isinstance(applied.configure_formatter(applied.config["formatters"]["json"]), JSONFormatter)
    assert applied.config["handlers"]["stderr"]["formatter"] == "text"
    assert log_config("info", "json")["handlers"]["stderr"]["formatter"] == "json"
    assert applied.config["root"]["level"] == "DEBUG"


def test_json_lines_hold_what_happened(
    stack: Callable[..., Stack], live: Callable[[Stack], Live], json_log: io.StringIO
) -> None:
    def broken() -> None:
        raise RuntimeError(EVIL)

    server = stack()
    server.app.add_api_route("/broken", broken)
    url = live(server).url
    uvicorn_access = logging.getLogger("uvicorn.access")
    before = uvicorn_access.level
    uvicorn_access.setLevel(logging.INFO)
    for number, path in enumerate(["/v1/models", "/broken"]):
        httpx.get(url + path, headers={"x-request-id": f"id-{number}"})
    uvicorn_access.setLevel(before)
    logging.getLogger("outside").warning("of no request")
    assert eventually(lambda: json_log.getvalue().count("uvicorn.access") == 2)
    lines = [json.loads(line) for line in json_log.getvalue().splitlines()]
    found = {line["request_id"]: line for line in lines if line["logger"] == "uvicorn.access"}
    assert (found["id-0"]["method"], found["id-0"]["path"], found["id-0"]["status"]) == ("GET", "/v1/models", 200)
    assert found["id-1"]["status"] == 500
    assert found["id-0"]["client"].startswith("127.0.0.1:")
    (failure,) = [line for line in lines if "exception" in line]
    assert (failure["level"], failure["request_id"]) == ("error", "id-1")
    assert EVIL in failure["exception"]
    (outside,) = [line for line in lines if line["logger"] == "outside"]
    assert "request_id" not in outside
    assert datetime.fromisoformat(outside["timestamp"]).tzinfo is not None


def test_requests_leave_one_line_each_and_no_text(
    stack: Callable[..., Stack], model: Model, live: Callable[[Stack], Live], log: io.StringIO
) -> None:
    model.says("some secret words", to="nonce-42").failing.add("nonce-42")
    server = live(stack(model, api_keys=("key-nonce",)))
    uvicorn_access = logging.getLogger("uvicorn.access")
    before = uvicorn_access.level
    uvicorn_access.setLevel(logging.INFO)
    headers = {"authorization": "Bearer key-nonce", "x-request-id": "a%0d%0ab"}
    with httpx.Client(base_url=server.url, headers=headers) as client:
        client.get("/" + urllib.parse.quote(EVIL), params={"q": EVIL})
        client.get("/v1/models", headers={"authorization": "Bearer nonce-wrong"})
        for body in (
            {"prompt": "nonce-1", "model": EVIL},
            {"prompt": "nonce-1", "user": EVIL, EVIL: EVIL},
            {"prompt": "nonce-1", "temperature": EVIL},
            {"prompt": EVIL, "stop": [EVIL]},
        ):
            client.post("/v1/completions", content=json.dumps(body), headers={"content-type": "application/json"})
    uvicorn_access.setLevel(before)
    assert eventually(lambda: log.getvalue().count("uvicorn.access") == 6)
    lines = [line for line in log.getvalue().split("\n") if "httpx" not in line and line]
    assert len(lines) == 6
    assert all(LINE.fullmatch(line) for line in lines)
    assert "nonce" not in log.getvalue()


@pytest.mark.parametrize(
    ("path", "status", "shown"),
    [
        ("/health", 200, False),
        ("/health?x=1", 200, False),
        ("/metrics", 200, False),
        ("/health", 503, True),
        ("/v1/models", 200, True),
    ],
)
def test_probes_that_went_well_are_not_logged(path: str, status: int, shown: bool) -> None:
    arguments = ("127.0.0.1:1", "GET", path, "1.1", status)
    record = logging.LogRecord("uvicorn.access", logging.INFO, "", 0, '%s - "%s %s HTTP/%s" %d', arguments, None)
    assert NoProbes().filter(record) == shown
