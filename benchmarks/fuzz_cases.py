"""Requests that are a little, or very, wrong: made from good ones by a seed and a number, and nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import h11

Json = Any

_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a"]}
_CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}

BODIES: dict[str, tuple[dict[str, Json], ...]] = {
    "/v1/completions": (
        {"prompt": "hi", "max_tokens": 3, "temperature": 0, "logprobs": 1, "stop": ["x"], "seed": 1},
        {"prompt": ["a", "b"], "max_tokens": 2, "n": 2, "echo": True, "stream": True, "logit_bias": {"5": 1}},
        {"prompt": [1, 2, 3], "max_tokens": 2, "prompt_logprobs": 1, "allowed_token_ids": [5, 6], "min_tokens": 1},
        {"prompt": [[1], [2]], "max_tokens": 3, "structured_outputs": {"regex": "[a-c]{2}"}, "bad_words": ["b"]},
        {"prompt": ["a", "b"], "structured_outputs": {"choice": ["x1", "y1"]}, "bad_words": ["1", "x1", "y1"], "n": 2},
        {"prompt": "hi", "max_tokens": 4, "allowed_token_ids": [33], "bad_words": ["11"], "stream": True},
    ),
    "/v1/chat/completions": (
        {**_CHAT, "stream": True, "stream_options": {"include_usage": True}, "top_logprobs": 2, "logprobs": True},
        {**_CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": _SCHEMA}}},
        {**_CHAT, "tools": [_TOOL], "tool_choice": "required", "chat_template_kwargs": {"x": 1}},
        {**_CHAT, "repetition_penalty": 1.2, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "kv_budget": 0.5},
    ),
    "/v1/messages": ({**_CHAT, "system": "s", "stop_sequences": ["x"]}, {**_CHAT, "stream": True}),
    "/v1/messages/count_tokens": ({"messages": _CHAT["messages"], "model": "m"},),
    "/v1/responses": (
        {"input": "hi", "max_output_tokens": 3, "store": True, "metadata": {"a": "b"}},
        {"input": [{"role": "user", "content": "hi"}], "max_output_tokens": 3, "stream": True, "top_p": 0.5},
    ),
    "/tokenize": ({"prompt": "hi", "return_token_strs": True}, {"messages": _CHAT["messages"]}),
    "/detokenize": ({"tokens": [1, 2, 3]},),
}
_VALUES: tuple[Json, ...] = (
    None, True, False, 0, -1, 1, 2, 0.5, -0.0, 1e308, -1e308, 5e-324, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400, 129,
    float("nan"), float("inf"), "", " ", "\x00", "\ud800", "\U0001f600", "<|im_end|>", "{{ 7*7 }}", "../..", "a" * 5000,
    "9" * 400, [], {}, [[]], [None], {"": ""}, [[[[[[[[]]]]]]]], {"a": {"b": {"c": {}}}}, [0] * 300, "-1", "null", "[",
)  # fmt: skip
_BYTES = (
    b"\x00",
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b",",
    b":",
    b"\r\n",
    b"\n",
    b"1e9999",
)
_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"Content-Length", b"0"), (b"Content-Length", b"-1"), (b"Content-Length", b"99999999999999999999"),
    (b"Content-Length", b"1, 1"), (b"Transfer-Encoding", b"chunked"), (b"Transfer-Encoding", b"gzip"),
    (b"Content-Type", b"text/plain"), (b"Content-Type", b"application/json; charset=utf-16"), (b"Content-Type", b""),
    (b"Content-Encoding", b"gzip"), (b"Expect", b"100-continue"), (b"Upgrade", b"websocket"), (b"Connection", b"close"),
    (b"Authorization", b"Bearer \xff"), (b"X-Request-Id", b"a\tb"), (b"X-Request-Id", b"x" * 300), (b"Host", b""),
    (b"X-Api-Key", b"\x80"), (b"Cookie", b"a=" + b"b" * 20_000), (b"Accept", b"*/*"), (b"Range", b"bytes=0-1"),
    (b"X Y", b"z"), (b"", b""), (b"Accept-Encoding", b"br"), (b"X-Forwarded-For", b"::1"), (b"Origin", b"null"),
)  # fmt: skip
_METHODS = (b"GET", b"POST", b"PUT", b"DELETE", b"HEAD", b"OPTIONS", b"PATCH", b"TRACE", b"get", b"CONNECT", b"\x00")


@dataclass(frozen=True, slots=True)
class Case:
    """One request, as it is written. `hangs_up`: the client leaves without reading the answer."""

    method: bytes
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    hangs_up: bool = False

    @property
    def wire(self) -> bytes:
        """The bytes to send; with the body's length, unless the headers say something of it."""
        headers = self.headers
        if not any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in headers):
            headers = (*headers, (b"Content-Length", b"%d" % len(self.body)))
        lines = [self.method + b" " + self.target + b" HTTP/1.1", *(name + b": " + value for name, value in headers)]
        return b"\r\n".join(lines) + b"\r\n\r\n" + self.body

    @property
    def is_complete(self) -> bool:
        """Whether a server has all that it needs for an answer, if only that this is no HTTP."""
        parser = h11.Connection(h11.SERVER)
        try:
            parser.receive_data(self.wire)
            while (event := parser.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.EndOfMessage):
                    return True
        except h11.RemoteProtocolError:
            return True
        return False


def make_case(seed: int, number: int, routes: Sequence[tuple[str, str]]) -> Case:
    """Case `number` of `seed`; `routes` are the methods and paths that there are."""
    r = random.Random(f"{seed}/{number}")
    method, path = r.choice(routes)
    body = json.dumps(r.choice(BODIES[path])).encode() if path in BODIES and method == "POST" else b""
    headers = ((b"Host", b"server"), (b"Content-Type", b"application/json"))
    case = Case(method.encode(), path.replace("{", "").replace("}", "").encode(), headers, body)
    for _ in range(r.choice((1, 1, 1, 2, 3))):
        case = r.choice(_MUTATIONS)(r, case)
    return replace(case, hangs_up=r.random() < 0.03)


def smaller(case: Case) -> Iterator[Case]:
    """Simpler cases than `case`, the boldest cuts first."""
    for number in range(len(case.headers)):
        yield replace(case, headers=case.headers[:number] + case.headers[number + 1 :])
    size = len(case.body) // 2
    while size:
        for start in range(0, len(case.body), size):
            yield replace(case, body=case.body[:start] + case.body[start + size :])
        size //= 2


def _mutate_json(r: random.Random, case: Case) -> Case:
    try:
        body = json.loads(case.body)
    except (ValueError, RecursionError):
        return _mutate_bytes(r, case)
    places = list(_places(body))
    if not places:
        return case
    for _ in range(r.choice((1, 1, 2, 4))):
        parent, key = r.choice(places)
        kind = r.randrange(4)
        try:
            if kind == 0:
                del parent[key]
            elif kind == 1 and isinstance(parent, dict):
                donor = r.choice(r.choice(list(BODIES.values())))
                parent.update(r.sample(sorted(donor.items()), 1))
            else:
                parent[key] = r.choice(_VALUES)
        except (KeyError, IndexError):
            continue
    return replace(case, body=json.dumps(body).encode("utf-8", "surrogatepass"))


def _places(value: Json) -> list[tuple[Any, Any]]:
    """Every place in `value` that holds a value, as a container and a key."""
    if not isinstance(value, dict | list):
        return []
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    return [(value, key) for key in keys] + [place for key in keys for place in _places(value[key])]


def _mutate_bytes(r: random.Random, case: Case) -> Case:
    return replace(case, body=_damaged(r, case.body))


def _damaged(r: random.Random, data: bytes) -> bytes:
    at, size = r.randrange(len(data) + 1), r.choice((1, 1, 2, 8, 64))
    kind = r.randrange(6)
    if kind == 0:
        return data[:at] + r.choice(_BYTES) * r.choice((1, 1, 3, 300)) + data[at:]
    if kind == 1:
        return data[:at] + data[at + size :]
    if kind == 2:
        return data[:at] + bytes(r.randrange(256) for _ in range(size)) + data[at + size :]
    if kind == 3:
        return data[:at] + data[at : at + size] * r.choice((2, 50)) + data[at + size :]
    if kind == 4:
        return data[:at]
    return b"[" * r.choice((1, 100, 100_000)) + data


def _mutate_headers(r: random.Random, case: Case) -> Case:
    headers = list(case.headers)
    kind = r.randrange(4)
    if kind == 0 and headers:
        del headers[r.randrange(len(headers))]
    elif kind == 1:
        headers.insert(r.randrange(len(headers) + 1), (b"X-Junk", r.randbytes(r.choice((1, 10, 100)))))
    elif kind == 2 and headers:
        at = r.randrange(len(headers))
        headers[at] = (headers[at][0], _damaged(r, headers[at][1]))
    else:
        headers.insert(r.randrange(len(headers) + 1), r.choice(_HEADERS))
    return replace(case, headers=tuple(headers))


def _mutate_target(r: random.Random, case: Case) -> Case:
    kind = r.randrange(4)
    if kind == 0:
        return replace(
            case, target=case.target + r.choice((b"?a=b", b"/", b"//", b"%00", b"%2e%2e", b"?" + b"x" * 5000))
        )
    if kind == 1:
        return replace(case, target=r.choice((b"*", b"/", b"", b"http://x/v1", b"/%ff", b"/v1/../health", b"/\xe9")))
    if kind == 2:
        return replace(case, target=case.target.replace(b"/", b"%2f", 1))
    return replace(case, target=_damaged(r, case.target))


def _mutate_method(r: random.Random, case: Case) -> Case:
    return replace(case, method=r.choice(_METHODS))


_MUTATIONS: tuple[Callable[[random.Random, Case], Case], ...] = (
    *[_mutate_json] * 8, *[_mutate_bytes] * 4, *[_mutate_headers] * 3, _mutate_target, _mutate_method
)  # fmt: skip
