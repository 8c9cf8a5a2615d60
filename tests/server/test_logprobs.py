"""Logprobs in both shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from models.tokenizer import Tokenizer
from tests.server.stack import CHAT_HI_TEXT, Json, Model, Stack

StackFactory = Callable[..., Stack]
KEYS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def joined(events: list[Json]) -> Json:
    """The logprobs of a stream's only choice."""
    parts = [choice["logprobs"] for event in events for choice in event["choices"]]
    return {key: [item for part in parts for item in part[key]] for key in KEYS}


@pytest.mark.parametrize("prompt", ["\nfirst  two\tspaces 😀!", "a", "<|im_start|>user\nabcd", [255, 3, 0]])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_echoed_tokens_join_to_the_text(
    stack: StackFactory, model: Model, tokenizer: Tokenizer, prompt: Any, count: int
) -> None:
    text = prompt if isinstance(prompt, str) else tokenizer.decode(prompt)
    body = {"prompt": prompt, "echo": True, "logprobs": count, "max_tokens": 20}
    model.says("čau 😀 x", to=text)
    choice = stack(model).completion(**body)["choices"][0]
    logprobs = choice["logprobs"]
    assert choice["text"] == text + "čau 😀 x"
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert len({len(logprobs[key]) for key in KEYS}) == 1
    tokens = logprobs["tokens"]
    assert logprobs["text_offset"] == [len("".join(tokens[:number])) for number in range(len(tokens))]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert None not in logprobs["token_logprobs"][1:]
    assert all(1 <= len(top) <= count + 1 for top in logprobs["top_logprobs"][1:])
    assert joined(stack(model).completion_events(**body)) == logprobs


def test_every_counted_token_has_an_entry(stack: StackFactory, model: Model) -> None:
    whole = stack(model.says("one two STOP")).completion(logprobs=2, stop=["STOP"], max_tokens=100)
    logprobs = whole["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == whole["usage"]["completion_tokens"] == 12
    assert logprobs["tokens"][-4:] == ["", "", "", ""]
    assert "".join(logprobs["tokens"]) == whole["choices"][0]["text"] == "one two "


def test_text_held_back_takes_its_logprobs_along(stack: StackFactory, model: Model) -> None:
    for event in stack(model.says("x STO y STO")).completion_events(logprobs=0, stop=["STOP"], max_tokens=100):
        choice = event["choices"][0]
        assert "".join(choice["logprobs"]["tokens"]) == choice["text"]


def test_parts_of_characters_have_names_of_their_own(stack: StackFactory, model: Model) -> None:
    choice = stack(model.says("😀")).completion(logprobs=1, max_tokens=100)["choices"][0]
    names = [next(iter(top)) for top in choice["logprobs"]["top_logprobs"]]
    assert names == ["bytes:\\xf0", "bytes:\\x9f", "bytes:\\x98", "bytes:\\x80", "<|im_end|>"]


CHAT_REPLY = "漢字 and 😀"


def test_chat_logprobs_have_the_bytes_of_the_text(stack: StackFactory, model: Model) -> None:
    model.says(CHAT_REPLY, to=CHAT_HI_TEXT)
    body = {"logprobs": True, "top_logprobs": 5}
    choice = stack(model).chat(**body)["choices"][0]
    content = choice["logprobs"]["content"]
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == choice["message"]["content"]
    assert all(len(entry["top_logprobs"]) == 5 for entry in content)
    assert all(entry["top_logprobs"][0]["token"] == entry["token"] for entry in content)
    assert len({str(entry["top_logprobs"]) for entry in content}) > 3
    special = ("<|im_start|>", "<|im_end|>")
    assert all(top["bytes"] for entry in content for top in entry["top_logprobs"] if top["token"] not in special)
    events = stack(model).chat_events(**body)
    assert [
        entry for event in events for c in event["choices"] if c["logprobs"] for entry in c["logprobs"]["content"]
    ] == content


def test_chat_chunks_have_the_bytes_of_their_text(stack: StackFactory, model: Model) -> None:
    model.says(CHAT_REPLY, to=CHAT_HI_TEXT)
    for event in stack(model).chat_events(logprobs=True):
        choice = event["choices"][0]
        if choice["logprobs"] is not None:
            data = bytes(byte for entry in choice["logprobs"]["content"] for byte in entry["bytes"])
            assert data.decode() == choice["delta"].get("content", "")


@pytest.mark.parametrize(
    ("logprobs", "top_logprobs", "length"),
    [(True, None, 0), (True, 0, 0), (True, 5, 5), (True, 20, 20), (False, 0, None), (None, None, None)],
)
def test_chat_logprobs_as_asked(
    stack: StackFactory, model: Model, logprobs: bool | None, top_logprobs: int | None, length: int | None
) -> None:
    choice = stack(model).chat(logprobs=logprobs, top_logprobs=top_logprobs)["choices"][0]
    if length is None:
        assert choice["logprobs"] is None
    else:
        assert [len(entry["top_logprobs"]) for entry in choice["logprobs"]["content"]] == [length] * 3


@pytest.mark.parametrize(("logprobs", "top_logprobs"), [(False, 5), (None, 5), (True, 21), (True, -1), (1, None)])
def test_chat_logprobs_that_make_no_sense(stack: StackFactory, logprobs: Any, top_logprobs: Any) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "logprobs": logprobs, "top_logprobs": top_logprobs}
    response = stack().post("/v1/chat/completions", **body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] in ("logprobs", "top_logprobs")


def test_more_logprobs_than_the_operator_allows(stack: StackFactory) -> None:
    response = stack(max_logprobs=3).post("/v1/completions", prompt="hi", logprobs=4)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "logprobs")
