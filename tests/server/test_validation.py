"""Bodies that are refused, and that the answer says which field to change; and those that must not be."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from server.protocol.chat import ChatRequest
from server.protocol.completions import CompletionRequest
from server.protocol.messages import MessagesRequest
from server.protocol.responses_request import ResponsesRequest
from server.protocol.tokenize import TokenizeRequest
from tests.server.stack import CHAT_HI, Json, Stack

StackFactory = Callable[..., Stack]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LEAST: dict[str, Json] = {
    COMPLETIONS: {"prompt": "hi"},
    CHAT: {"messages": CHAT_HI},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [1]},
}


def post_raw(stack: Stack, path: str, body: bytes, content_type: str | None = "application/json") -> httpx.Response:
    """The answer to a body as it is."""
    headers = {} if content_type is None else {"content-type": content_type}
    return stack.run(lambda client: client.post(path, content=body, headers=headers))


def statuses(stack: Stack, path: str, bodies: Sequence[str | bytes]) -> list[tuple[int, str | None]]:
    """Status and the field blamed for each body, all from one server."""

    async def ask(client: httpx.AsyncClient) -> list[tuple[int, str | None]]:
        answers = []
        for body in bodies:
            response = await client.post(path, content=body, headers={"content-type": "application/json"})
            if response.headers["content-type"] != "application/json":
                answers.append((response.status_code, None))
                continue
            error = response.json().get("error") or {}
            assert response.status_code == 200 or set(error) >= {"message", "type"}
            answers.append((response.status_code, error.get("param")))
        return answers

    return stack.run(ask)


INTS = ["n", "max_tokens", "min_tokens", "top_k", "seed", "priority", "logprobs"]
FLOATS = ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"]
WRONG_NUMBERS = ['"5"', "true", "[]", "{}", "NaN", "Infinity", "-Infinity", "1e309", "1" + "0" * 400, "-" + "9" * 400]


@pytest.mark.parametrize("field", INTS + FLOATS)
def test_numbers_are_numbers(stack: StackFactory, field: str) -> None:
    wrong = WRONG_NUMBERS + (["1.5", "3.0"] if field in INTS else [])
    bodies = [f'{{"prompt": "hi", "{field}": {value}}}' for value in wrong]
    for body, (status, param) in zip(bodies, statuses(stack(), COMPLETIONS, bodies), strict=True):
        assert status == 400, body
        assert param in (field, None), body


RANGES: list[tuple[str, list[Any], list[Any]]] = [
    ("n", [1, 4, None], [0, -1, 129, 10**9, 2**63]),
    ("max_tokens", [1, 10**9, None], [0, -1, 2**31, 2**64]),
    ("min_tokens", [0, 16, None], [-1, 17, 2**31]),
    ("temperature", [0, 0.0, -0.0, 1e-30, 1, 2], [-0.1, 2.1, 100, 1e30]),
    ("top_p", [1, 1e-4], [0, -0.5, 1.1]),
    ("top_k", [-1, 0, 1, 10**6], [-2, 2**31]),
    ("min_p", [0, 1], [-0.1, 1.1]),
    ("presence_penalty", [-2, 2], [-2.1, 2.1]),
    ("frequency_penalty", [-2, 2], [-2.1, 2.1]),
    ("repetition_penalty", [0.5, 1.5], [0, -1, 11]),
    ("seed", [0, -1, -(2**63), 2**63 - 1, None], [-(2**63) - 1, 2**63, 2**64]),
    ("priority", [-5, 0, 5], [2**31, -(2**40)]),
    ("logprobs", [0, 20, None], [-1, 21, 2**64]),
    ("stop", ["x", ["x"] * 16, [], None], ["", [""], ["x"] * 17, "x" * 257, ["x"] * 100_000, 5, [5], [None]]),
    ("stop_token_ids", [[], [261]], [[262], [-1], ["1"], [2**64], [True], list(range(129)), 5]),
    (
        "logit_bias",
        [{}, {"0": 100, "261": -100}, {"5": 1}],
        [
            {"262": 1},
            {"-1": 1},
            {"abc": 1},
            {"1.5": 1},
            {"²": 1},
            {str(2**31): 1},
            {"9" * 30: 1},
            {"1": 101},
            {"1": -101},
            {"1": "1"},
            {"1": None},
            {str(token): 1 for token in range(1025)},
            [],
        ],
    ),
    ("echo", [True, False], ["true", 1, 0]),
    ("stream_options", [None], [{"include_usage": True}, {}, [], "x"]),
    ("kv_budget", [0.2, 1.0, 1, 512, None], [0, 0.0, -0.1, 1.5, -1, 2**31, "0.2", True, []]),
    ("kv_policy", ["full", None], ["unknown", "", 5, "x" * 65, "../policies/evil"]),
    ("user", ["x", None], [5]),
    ("model", ["tiny", "org/alias", None], [5, ["tiny"]]),
    ("best_of", [1, None], [2, 0, -1, "1", 10**9]),
    ("suffix", ["", None], ["x"]),
    ("response_format", [{"type": "text"}, None], [{"type": "json_schema"}, {"type": "xml"}, {}, "text", []]),
    ("allowed_token_ids", [[], [1, 261], None], [[262], [-1], "x", [1.0], [True], [2**40]]),
    ("bad_words", [[], ["x"], "x"], [[""], ["x" * 257], ["x"] * 17, [5]]),
    ("prompt_logprobs", [0, 20, None], [-1, 21, "5", True, 10**6]),
    ("logprob_token_ids", [[], None], [[1], [262], "x"]),
    ("truncate_prompt_tokens", [-1, 1, 5, None], [0, -2, 1.5, 2**31, "5"]),
    ("truncation_side", ["left", "right"], ["top", 5]),
    ("cache_salt", ["x", None], ["", "x" * 129, 5]),
    ("return_token_ids", [True], [1, "x"]),
    ("add_special_tokens", [True, False], [1, "yes"]),
]


@pytest.mark.parametrize(("field", "good", "bad"), RANGES, ids=[row[0] for row in RANGES])
def test_ranges(stack: StackFactory, field: str, good: list[Any], bad: list[Any]) -> None:
    bodies = [json.dumps({"prompt": "hi", field: value}) for value in [*good, *bad]]
    answers = statuses(stack(), COMPLETIONS, bodies)
    assert [status for status, _ in answers[: len(good)]] == [200] * len(good)
    for body, (status, param) in zip(bodies[len(good) :], answers[len(good) :], strict=True):
        assert status == 400, body[:200]
        assert (param or "").startswith(field), body[:200]


UNSUPPORTED: dict[str, list[Any]] = {
    "grammar": ["root ::= x"],
    "guided_choice": [["a", "b"]],
    "guided_json": [{"type": "object"}],
    "guided_regex": ["a+"],
    "logits_processors": [["x"]],
    "prompt_embeds": ["AAAA"],
    "regex": ["a"],
    "repetition_detection": [{"x": 1}],
    "use_beam_search": [True],
    "vllm_xargs": [{"x": 1}],
}
UNSUPPORTED_IN_CHAT: dict[str, list[Any]] = {
    "add_special_tokens": [True],
    "audio": [{"voice": "x"}],
    "chat_template": ["{{ 1 }}"],
    "documents": [[{"text": "x"}]],
    "function_call": ["auto", {"name": "f"}],
    "functions": [[{"name": "f"}]],
    "mm_processor_kwargs": [{"x": 1}],
    "modalities": [["text", "audio"], ["audio"]],
    "web_search_options": [{"x": 1}],
}


@pytest.mark.parametrize(("path", "fields"), [(COMPLETIONS, UNSUPPORTED), (CHAT, UNSUPPORTED | UNSUPPORTED_IN_CHAT)])
def test_what_would_change_the_result_but_cannot_be_done_is_refused(
    stack: StackFactory, path: str, fields: dict[str, list[Any]]
) -> None:
    asked = [(field, value) for field, values in fields.items() for value in values]
    bodies = [json.dumps(LEAST[path] | {field: value}) for field, value in asked]
    for (field, _), (status, param) in zip(asked, statuses(stack(), path, bodies), strict=True):
        assert status == 400, field
        assert (param or "").startswith(field)


HARMLESS: Json = {
    "foo": {"deep": [1, {"x": None}]},
    "max_token": 5,
    "metadata": {"a": "b"},
    "parallel_tool_calls": True,
    "include_reasoning": True,
    "prompt_cache_options": {},
    "length_penalty": 1.0,
    "request_id": "x",
    "spaces_between_special_tokens": True,
    "prediction": {"type": "content", "content": "x"},
    "prompt_cache_key": "x",
    "reasoning_effort": "low",
    "safety_identifier": "x",
    "service_tier": "auto",
    "store": True,
    "verbosity": "low",
}


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_unknown_fields_are_ignored_wherever_they_are(stack: StackFactory, path: str) -> None:
    body = LEAST[path] | HARMLESS | {"stream": True, "stream_options": {"include_obfuscation": False}}
    assert stack().post(path, **body, response_format={"type": "text", "foo": 1}).status_code == 200


@pytest.mark.parametrize("path", LEAST)
def test_the_answer_names_fields_that_nobody_knows(stack: StackFactory, path: str) -> None:
    response = stack().post(path, **LEAST[path], max_token=5, **{"bad\r\nname: x": 1, "é": 2})
    assert response.status_code == 200
    assert response.headers["x-ignored-fields"] == "max_token"
    assert "x-ignored-fields" not in stack().post(path, **LEAST[path], model="tiny").headers


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"},
        {"tools": [], "tool_choice": "auto", "functions": None},
        {"modalities": ["text"], "tools": None},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "foo": 1}], "id": "x"}]},
    ],
)
def test_fields_that_ask_for_nothing_are_no_mistake(stack: StackFactory, body: Json) -> None:
    assert stack().post(CHAT, **(LEAST[CHAT] | body)).status_code == 200


NO_OBJECTS: list[str | bytes] = [
    b"",
    b"[]",
    b"null",
    b'"x"',
    b"123",
    b"{",
    b'{"prompt": "hi"',
    b'{"prompt": "hi"}}',
    b"\xef\xbb\xbf{}",
    '{"prompt": "hi"}'.encode("utf-16"),
    b'{"prompt": "\xff\xfe"}',
    b"prompt=hi",
    b"\x1f\x8b\x08\x00",
    b'{"prompt": NaN}',
    b"{'prompt': 'hi'}",
    b"{}",
]


@pytest.mark.parametrize("path", LEAST)
def test_bodies_that_are_no_json_object(stack: StackFactory, path: str) -> None:
    answers = statuses(stack(), path, NO_OBJECTS)
    assert [status for status, _ in answers] == [400] * len(NO_OBJECTS)


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
@pytest.mark.parametrize("path", LEAST)
def test_the_body_must_say_that_it_is_json(stack: StackFactory, path: str, content_type: str | None) -> None:
    response = post_raw(stack(), path, json.dumps(LEAST[path]).encode(), content_type)
    assert response.status_code == 415
    assert "application/json" in response.json()["error"]["message"]


def test_a_charset_beside_json_is_no_mistake(stack: StackFactory) -> None:
    body = json.dumps(LEAST[COMPLETIONS]).encode()
    assert post_raw(stack(), COMPLETIONS, body, "Application/JSON; charset=utf-8").status_code == 200


def test_compressed_bodies_are_refused(stack: StackFactory) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    response = stack().run(lambda client: client.post(COMPLETIONS, content=b"\x1f\x8b", headers=headers))
    assert response.status_code == 415


def test_the_last_of_two_equal_keys_counts(stack: StackFactory) -> None:
    response = post_raw(stack(), COMPLETIONS, b'{"prompt": "hi", "echo": false, "echo": true, "max_tokens": 1}')
    assert response.json()["choices"][0]["text"] == "hio"


@pytest.mark.parametrize("field", ["messages", "tools", "response_format", "metadata", "chat_template_kwargs", "foo"])
def test_deep_nesting_ends_nothing(stack: StackFactory, field: str) -> None:
    bodies = [
        f'{{"messages": [{{"role": "user", "content": "hi"}}], "{field}": {opening * depth}1{closing * depth}}}'
        for opening, closing in (("[", "]"), ('{"a":', "}"))
        for depth in (200, 1_000, 100_000)
    ]
    began = time.monotonic()
    assert [status for status, _ in statuses(stack(), CHAT, bodies)] == [400] * 6
    assert time.monotonic() - began < 2


LONE = ["\\ud800", "\\udc97", "\\udc00\\ud800"]
PLACES = {
    "prompt": '{"prompt": "X"}',
    "stop": '{"prompt": "hi", "stop": ["X"]}',
    "model": '{"prompt": "hi", "model": "X"}',
    "user": '{"prompt": "hi", "user": "X"}',
    "key": '{"prompt": "hi", "X": 1}',
    "unknown": '{"prompt": "hi", "cache_salt": ["X"]}',
}


@pytest.mark.parametrize("place", PLACES)
def test_lone_surrogates_are_refused(stack: StackFactory, place: str) -> None:
    bodies = [PLACES[place].replace("X", lone) for lone in LONE]
    assert [status for status, _ in statuses(stack(), COMPLETIONS, bodies)] == [400] * len(LONE)


def test_surrogate_pairs_and_nul_are_text(stack: StackFactory) -> None:
    body = b'{"prompt": "\\ud83d\\ude00\\u0000", "echo": true, "max_tokens": 1}'
    assert post_raw(stack(), COMPLETIONS, body).json()["choices"][0]["text"] == "😀\0o"


CROWDS: list[tuple[str, Json]] = [
    (COMPLETIONS, {"prompt": ["x"] * 100_000, "n": 128}),
    (COMPLETIONS, {"prompt": [[1]] * 129}),
    (COMPLETIONS, {"prompt": ["x"] * 100, "n": 3}),
    (COMPLETIONS, {"prompt": [1] * 1_000_000}),
    (COMPLETIONS, {"prompt": "hi", "stop": ["x"] * 100_000}),
    (COMPLETIONS, {"prompt": "hi", "logit_bias": {str(token): "x" for token in range(100_000)}}),
    (COMPLETIONS, {"prompt": "hi", "n": 10**9}),
    (CHAT, {"messages": CHAT_HI * 100_000}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 100_000}]}),
    (CHAT, {"messages": [{"role": "user", "content": "x" * 5_000_000}]}),
]


@pytest.mark.parametrize(("path", "body"), CROWDS, ids=range(len(CROWDS)))
def test_crowds_are_turned_away_quickly(stack: StackFactory, path: str, body: Json) -> None:
    content = json.dumps(body).encode()
    server = stack()
    began = time.monotonic()
    response = post_raw(server, path, content)
    assert response.status_code == 400
    assert time.monotonic() - began < 1
    assert len(response.content) < 1_000
    assert server.model.num_steps == 0


def test_long_inputs_are_not_sent_back(stack: StackFactory) -> None:
    response = stack().post(COMPLETIONS, prompt="hi", temperature="x" * 1_000_000, stop="y" * 1_000_000)
    assert response.status_code == 400
    assert len(response.content) < 1_000


def test_many_mistakes_are_summed_up(stack: StackFactory) -> None:
    error = stack().post(COMPLETIONS, **dict.fromkeys(INTS + FLOATS, "x")).json()["error"]
    assert error["message"].count(";") == 3
    assert error["message"].endswith("more")


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(
    "body",
    [{"n": 0}, {"logit_bias": {"foo": 1}}, {"prompt": "x" * 500, "messages": [{"role": "user", "content": "x" * 500}]}],
)
def test_a_mistake_in_a_stream_is_a_plain_answer(stack: StackFactory, path: str, body: Json) -> None:
    response = stack().post(path, **(LEAST[path] | body | {"stream": True}))
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    assert response.json()["error"]["type"] == "invalid_request_error"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["hi", "user"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.just("role"), inner, max_size=3)
    ),
    max_leaves=6,
)


BODIES: list[tuple[str, type[BaseModel], Json]] = [
    (COMPLETIONS, CompletionRequest, LEAST[COMPLETIONS]),
    (CHAT, ChatRequest, LEAST[CHAT]),
    ("/v1/messages", MessagesRequest, {"model": "tiny", "max_tokens": 5, "messages": CHAT_HI}),
    ("/v1/responses", ResponsesRequest, {"input": "hi", "max_output_tokens": 5}),
    ("/tokenize", TokenizeRequest, LEAST["/tokenize"]),
]


@pytest.mark.parametrize(("path", "kind", "least"), BODIES, ids=[path for path, _, _ in BODIES])
@given(data=st.data())
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_body_makes_the_server_fail(
    stack: StackFactory, path: str, kind: type[BaseModel], least: Json, data: st.DataObject
) -> None:
    fields = st.dictionaries(st.sampled_from(sorted(kind.model_fields)), JSON_VALUES, max_size=3)
    bodies = [json.dumps(least | body) for body in data.draw(st.lists(fields, min_size=10, max_size=10))]
    for body, (status, _) in zip(bodies, statuses(stack(), path, bodies), strict=True):
        assert status in (200, 400, 404), body
