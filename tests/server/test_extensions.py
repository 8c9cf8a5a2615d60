"""What vLLM's clients ask for beyond OpenAI's API."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.server.stack import CHAT_HI_TEXT, Json, Model, Stack

StackFactory = Callable[..., Stack]


def test_token_ids_come_with_their_text(stack: StackFactory, model: Model) -> None:
    body = {"return_token_ids": True, "max_tokens": 50, "n": 2}
    expected = [*model.ids("žluť 😀"), 261]
    choices = stack(model.says("žluť 😀")).completion(**body)["choices"]
    assert [choice["token_ids"] for choice in choices] == [expected] * 2
    prompt = stack(model).post("/tokenize", prompt="hi").json()["tokens"]
    assert [choice["prompt_token_ids"] for choice in choices] == [prompt] * 2
    events = [choice for event in stack(model).completion_events(**body) for choice in event["choices"]]
    for index in range(2):
        of_choice = [choice for choice in events if choice["index"] == index]
        assert [token for choice in of_choice for token in choice["token_ids"]] == expected
        assert ["prompt_token_ids" in choice for choice in of_choice] == [True] + [False] * (len(of_choice) - 1)


def test_token_ids_of_an_echo_are_the_prompts(stack: StackFactory, model: Model) -> None:
    choice = stack(model.says("ok")).completion(echo=True, return_token_ids=True, logprobs=0)["choices"][0]
    assert choice["text"] == "hiok"
    assert choice["token_ids"] == [*model.ids("ok"), 261]
    assert len(choice["logprobs"]["tokens"]) == len(choice["token_ids"]) + len(choice["prompt_token_ids"])


def test_token_ids_of_chats(stack: StackFactory, model: Model) -> None:
    model.says("abc", to=CHAT_HI_TEXT)
    whole = stack(model).chat(return_token_ids=True)
    assert whole["choices"][0]["token_ids"] == [*model.ids("abc"), 261]
    events = stack(model).chat_events(return_token_ids=True)
    told = [token for event in events for choice in event["choices"] for token in choice.get("token_ids", [])]
    assert told == whole["choices"][0]["token_ids"]
    assert events[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert all("prompt_token_ids" not in event for event in events[1:])


def test_tokens_can_be_named_by_number(stack: StackFactory, model: Model) -> None:
    body = {"logprobs": 2, "return_tokens_as_token_ids": True}
    logprobs = stack(model.says("ab")).completion(**body)["choices"][0]["logprobs"]
    assert logprobs["tokens"] == [f"token_id:{token}" for token in [*model.ids("ab"), 261]]
    assert all(name.startswith("token_id:") for names in logprobs["top_logprobs"] for name in names)


def test_logprobs_of_the_prompt(stack: StackFactory) -> None:
    choices = stack().completion(prompt="abcd!", prompt_logprobs=2, n=2, max_tokens=1)["choices"]
    assert choices[0]["prompt_logprobs"] == choices[1]["prompt_logprobs"]
    first, second = choices[0]["prompt_logprobs"]
    assert first is None
    assert second == {
        "0": {"logprob": -0.5, "rank": 1, "decoded_token": "!"},
        "1": {"logprob": -2.0, "rank": 2, "decoded_token": '"'},
    }
    whole = stack().chat(prompt_logprobs=0, max_tokens=1)
    assert whole["prompt_logprobs"][0] is None
    assert len(whole["prompt_logprobs"]) == whole["usage"]["prompt_tokens"]
    assert all(entry["rank"] is None for each in whole["prompt_logprobs"][1:] for entry in each.values())


def test_an_echo_gives_as_many_alternatives_as_logprobs_say(stack: StackFactory) -> None:
    choice = stack().completion(prompt="xyz", echo=True, logprobs=1, prompt_logprobs=5, max_tokens=1)["choices"][0]
    assert [len(top) for top in choice["logprobs"]["top_logprobs"][1:3]] == [1, 1]
    assert [len(each) for each in choice["prompt_logprobs"][1:]] == [5, 5]


def test_a_stream_tells_no_logprobs_of_the_prompt(stack: StackFactory) -> None:
    response = stack().post("/v1/completions", prompt="hi", prompt_logprobs=1, stream=True)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt_logprobs")


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ({"truncate_prompt_tokens": 3}, "xyz"),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, "012"),
        ({"truncate_prompt_tokens": 1000}, "0123456789xyz"),
        ({"truncate_prompt_tokens": -1}, "0123456789xyz"),
    ],
)
def test_prompts_can_be_cut(stack: StackFactory, model: Model, body: Json, left: str) -> None:
    for prompt in ("0123456789xyz", model.ids("0123456789xyz")):
        choice = stack().completion(prompt=prompt, echo=True, return_token_ids=True, **body)["choices"][0]
        assert choice["prompt_token_ids"] == model.ids(left)
        assert choice["text"] == left + "ok"


def test_a_prompt_of_any_length_can_be_cut_to_fit(stack: StackFactory) -> None:
    for prompt in ("y" * 100_000, [5] * 100_000):
        whole = stack().completion(prompt=prompt, truncate_prompt_tokens=-1, max_tokens=7)
        assert whole["usage"]["prompt_tokens"] == 193
    whole = stack().chat(messages=[{"role": "user", "content": "x" * 300}], truncate_prompt_tokens=50)
    assert whole["usage"]["prompt_tokens"] == 50


def test_usage_in_every_chunk(stack: StackFactory, model: Model) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = stack(model.says("abcd", to=CHAT_HI_TEXT)).chat_events(stream_options=options)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == 5
    assert all(event["usage"]["total_tokens"] > event["usage"]["completion_tokens"] for event in events)


def test_only_allowed_tokens_and_no_bad_words(stack: StackFactory, model: Model) -> None:
    allowed = [*model.ids("xy"), 261]
    text = stack(model.says("axbyz")).completion(allowed_token_ids=allowed)["choices"][0]["text"]
    assert set(text) <= set("xy")
    text = stack(model.says("the cat sat")).completion(bad_words=["cat", "sat"])["choices"][0]["text"]
    assert text.startswith("the ca")
    assert "cat" not in text
    assert "sat" not in text


def test_alternatives_can_be_chosen(stack: StackFactory) -> None:
    response = stack().post("/v1/completions", prompt="hi", logprob_token_ids=[1])
    assert (response.status_code, response.json()["error"]["param"]) == (400, "logprob_token_ids")
    assert stack().post("/v1/completions", prompt="hi", logprobs=1, logprob_token_ids=[1]).status_code == 200


def test_the_effort_reaches_the_template(stack: StackFactory) -> None:
    plain = stack().chat()["usage"]["prompt_tokens"]
    assert stack().chat(reasoning_effort="low")["usage"]["prompt_tokens"] == plain + 3
