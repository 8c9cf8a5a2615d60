"""POST /v1/completions: text, stop strings, several prompts, edges of the context; streamed and not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from models.tokenizer import Tokenizer
from scheduler.plan import StepPlan, StepResult
from tests.server.stack import Json, Model, Stack, succeeded, texts

StackFactory = Callable[..., Stack]


def both(stack: StackFactory, model: Model, /, **body: Any) -> tuple[Json, list[Json]]:
    """The same request answered whole and in a stream, after checking that they agree."""
    whole = stack(model).completion(**body)
    events = stack(model).completion_events(**body)
    choices = whole["choices"]
    assert texts(events) == {choice["index"]: choice["text"] for choice in choices}
    ends = {c["index"]: c for event in events for c in event["choices"] if c["finish_reason"] is not None}
    for choice in choices:
        for key in ("finish_reason", "stop_reason"):
            assert ends[choice["index"]][key] == choice[key]
    return whole, events


@pytest.mark.parametrize("text", ["😀", "příliš žluťoučký", "漢字", "👨‍👩‍👧", "a😀b"])
def test_characters_split_over_tokens_arrive_whole(stack: StackFactory, model: Model, text: str) -> None:
    whole, events = both(stack, model.says(text), max_tokens=100)
    assert whole["choices"][0]["text"] == text
    assert all("\ufffd" not in choice["text"] for event in events for choice in event["choices"])


def test_a_character_cut_off_by_the_limit_is_told_of_the_same_way(stack: StackFactory, model: Model) -> None:
    whole, _ = both(stack, model.says("ab😀"), max_tokens=4)
    assert whole["choices"][0]["text"] == "ab\ufffd"
    assert whole["choices"][0]["finish_reason"] == "length"


def test_bytes_that_are_no_text_do_not_hold_up_what_follows(stack: StackFactory, model: Model) -> None:
    whole, events = both(stack, model.says(b"\x80" + b"x" * 40), max_tokens=100)
    assert whole["choices"][0]["text"] == "\ufffd" + "x" * 40
    assert len(events) == 42  # 41 tokens and the end


@pytest.mark.parametrize("stop", ["MNOPQRST", ["MNOPQRST"], ["Z", "MNOPQRST"], ["MN", "MNOP"]])
def test_nothing_of_a_stop_string_is_shown(stack: StackFactory, model: Model, stop: Any) -> None:
    whole, _ = both(stack, model.says("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), stop=stop, max_tokens=100)
    choice = whole["choices"][0]
    found = "MN" if stop == ["MN", "MNOP"] else "MNOPQRST"
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("ABCDEFGHIJKL", "stop", found)
    assert whole["usage"]["completion_tokens"] == len("ABCDEFGHIJKL" + found)


def test_a_stop_string_may_begin_and_end_within_tokens(stack: StackFactory, model: Model, tokenizer: Tokenizer) -> None:
    reply = tokenizer.encode("xabcdabcdy")
    assert [tokenizer.token_bytes(token) for token in reply] == [b"x", b"abcd", b"abcd", b"y"]
    whole, _ = both(stack, model.says(reply), stop="cdab", max_tokens=100)
    assert whole["choices"][0]["text"] == "xab"
    assert whole["usage"]["completion_tokens"] == 3
    shown, _ = both(stack, model, stop="cdab", max_tokens=100, include_stop_str_in_output=True)
    assert shown["choices"][0]["text"] == "xabcdab"


@pytest.mark.parametrize("length", [1, 6, 12])
@pytest.mark.parametrize("by_limit", [True, False])
def test_text_held_back_is_not_lost(stack: StackFactory, model: Model, length: int, by_limit: bool) -> None:
    text = "so " + "END_OF_ANSWER"[:length]
    limit = len(text) if by_limit else 100
    whole, _ = both(stack, model.says(text), stop=["END_OF_ANSWER"], max_tokens=limit)
    choice = whole["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (text, "length" if by_limit else "stop")


def test_the_end_token_is_counted_and_hidden(stack: StackFactory, model: Model) -> None:
    whole, _ = both(stack, model.says("abc"), max_tokens=100, skip_special_tokens=False)
    assert whole["choices"][0]["text"] == "abc"
    assert whole["usage"]["completion_tokens"] == 4
    shown, _ = both(stack, model, max_tokens=100, skip_special_tokens=False, include_stop_str_in_output=True)
    assert shown["choices"][0]["text"] == "abc<|im_end|>"


def test_a_stop_token_is_named(stack: StackFactory, model: Model) -> None:
    stop = model.ids("c")[0]
    whole, _ = both(stack, model.says("abcde"), stop_token_ids=[stop], max_tokens=100)
    choice = whole["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("ab", "stop", stop)


def test_no_stop_comes_before_min_tokens(stack: StackFactory, model: Model) -> None:
    whole, _ = both(stack, model.says("a\nb\nc\nd"), stop="\n", min_tokens=4, max_tokens=100)
    assert whole["choices"][0]["text"] == "a\nb"
    assert whole["usage"]["completion_tokens"] == 4
    ended, _ = both(stack, model.says("ab"), min_tokens=5, max_tokens=100)
    assert ended["choices"][0]["text"] == "ab..."


def test_ignore_eos_goes_on_to_the_limit(stack: StackFactory, model: Model) -> None:
    whole, _ = both(stack, model.says("ab"), ignore_eos=True, max_tokens=10)
    assert whole["usage"]["completion_tokens"] == 10
    assert whole["choices"][0]["finish_reason"] == "length"


PROMPTS = ["Anna", "Bert", "Cleo"]


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("as_ids", [False, True])
def test_several_prompts_with_several_choices_each(
    stack: StackFactory, model: Model, tokenizer: Tokenizer, echo: bool, as_ids: bool
) -> None:
    for number, prompt in enumerate(PROMPTS):
        model.says(f"<{prompt}>" * (number + 1), to=prompt)
    prompt = [tokenizer.encode(text) for text in PROMPTS] if as_ids else PROMPTS
    whole, _ = both(stack, model, prompt=prompt, n=2, echo=echo, max_tokens=100)
    expected = [(prompt if echo else "") + f"<{prompt}>" * (number + 1) for number, prompt in enumerate(PROMPTS)]
    assert [choice["index"] for choice in whole["choices"]] == list(range(6))
    assert [choice["text"] for choice in whole["choices"]] == [text for text in expected for _ in range(2)]
    assert whole["usage"]["prompt_tokens"] == sum(len(tokenizer.encode(prompt)) for prompt in PROMPTS)
    assert whole["usage"]["completion_tokens"] == 2 * (7 + 13 + 19)
    assert whole["usage"]["kv_cache"] == {
        "rows_kept": whole["usage"]["prompt_tokens"] * 2 + 2 * (6 + 12 + 18),
        "rows_evicted": 0,
        "preemptions": 0,
    }


def test_a_list_of_ids_is_one_prompt(stack: StackFactory, model: Model, tokenizer: Tokenizer) -> None:
    assert stack(model).completion(prompt=tokenizer.encode("hi"))["choices"][0]["text"] == "ok"
    assert len(stack(model).completion(prompt=[tokenizer.encode("hi")])["choices"]) == 1


def usage_events(events: list[Json]) -> list[Json]:
    """The usage of each event that has one."""
    return [event["usage"] for event in events if event.get("usage") is not None]


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True, "unknown": 1}])
@pytest.mark.parametrize(("n", "end"), [(1, {"max_tokens": 1}), (3, {"stop": "b"}), (3, {"max_tokens": 100})])
def test_usage_comes_once_after_the_end_for_those_who_asked(
    stack: StackFactory, model: Model, options: Json | None, n: int, end: Json
) -> None:
    model.says("abcd")
    body: Json = {"n": n, **end}
    events = stack(model).completion_events(stream_options=options, **body)
    if not (options or {}).get("include_usage"):
        assert not any("usage" in event for event in events)
        return
    assert all("usage" in event for event in events)
    *before, last = events
    assert usage_events(before) == []
    assert last["choices"] == []
    assert all(len(event["choices"]) == 1 for event in before)
    assert last["usage"] == stack(model).completion(**body)["usage"]


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["ok", ""], [[1], []], None])
def test_an_empty_prompt_is_refused(stack: StackFactory, prompt: Any) -> None:
    response = stack().post("/v1/completions", prompt=prompt)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"


CONTEXT = 50


@pytest.mark.parametrize("max_tokens", [None, 1, 2, CONTEXT, 10**9])
@pytest.mark.parametrize("length", [CONTEXT - 2, CONTEXT - 1, CONTEXT, CONTEXT + 1])
def test_edges_of_the_context(stack: StackFactory, model: Model, length: int, max_tokens: int | None) -> None:
    small = stack(model.says("y" * 100, to="x" * length), engine={"max_model_len": CONTEXT})
    response = small.post("/v1/completions", prompt="x" * length, max_tokens=max_tokens)
    if length >= CONTEXT:
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
        assert str(CONTEXT) in error["message"]
        assert str(length) in error["message"]
        return
    body = succeeded(response)
    assert body["usage"]["completion_tokens"] == min(max_tokens or 16, CONTEXT - length)
    assert body["choices"][0]["finish_reason"] == "length"


def test_max_tokens_zero_scores_a_prompt(stack: StackFactory, model: Model) -> None:
    whole, _ = both(stack, model, prompt="hi there", echo=True, logprobs=1, max_tokens=0)
    choice = whole["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("hi there", "length")
    assert whole["usage"]["completion_tokens"] == 0
    assert len(choice["logprobs"]["tokens"]) == whole["usage"]["prompt_tokens"]


def test_the_default_is_sixteen_tokens(stack: StackFactory, model: Model) -> None:
    assert stack(model.says("x" * 50)).completion()["usage"]["completion_tokens"] == 16


def test_ids_and_names(stack: StackFactory, model: Model) -> None:
    whole, events = both(stack, model, model="org/alias")
    assert whole["object"] == "text_completion"
    assert whole["id"].startswith("cmpl-")
    assert whole["model"] == "org/alias"
    assert {event["id"] for event in events}.isdisjoint({whole["id"]})
    assert len({event["id"] for event in events}) == 1


def test_a_seed_is_drawn_where_none_is_given(stack: StackFactory, model: Model) -> None:
    seeds = []

    def note(plan: StepPlan) -> StepResult:
        seeds.extend(work.sample.params.seed for work in plan.work if work.sample is not None)
        return Model.execute(model, plan)

    with mock.patch.object(model, "execute", note):
        stack(model).completion(max_tokens=1)
        stack(model).completion(max_tokens=1)
        stack(model).completion(max_tokens=1, seed=-7)
    assert len(set(seeds)) == 3
    assert seeds[2] == -7
