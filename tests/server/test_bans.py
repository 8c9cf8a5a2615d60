"""Requests whose bans and forms leave no token: their sender's mistake, told as early as it shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from models.tokenizer import Tokenizer
from scheduler.plan import StepPlan, StepResult, WorkResult
from scheduler.request import Unsatisfiable
from tests.server.stack import CHAT_HI, Json, Model, Stack, sse

StackFactory = Callable[..., Stack]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
END = 261
X, Y = 87, 88


class Exhausted(Model):
    """Says one token, then finds that the request leaves no other."""

    def execute(self, plan: StepPlan) -> StepResult:
        """See `scheduler.engine.Runner`."""
        result = super().execute(plan)
        none_left = WorkResult(error=Unsatisfiable("nothing is left"))
        later = [work.sample is not None and work.sample.step > 0 for work in plan.work]
        told = zip(later, result.work, strict=True)
        return replace(result, work=tuple(none_left if is_late else found for is_late, found in told))


NOTHING_TO_BEGIN_WITH: list[tuple[str, Json]] = [
    ("bad_words", {"structured_outputs": {"choice": ["x"]}, "bad_words": ["x"]}),
    ("bad_words", {"structured_outputs": {"json_object": True}, "bad_words": ["{"]}),
    ("allowed_token_ids", {"structured_outputs": {"regex": "[a-c]+"}, "allowed_token_ids": [X, END]}),
    ("allowed_token_ids", {"allowed_token_ids": [X], "bad_words": ["x"]}),
    ("allowed_token_ids", {"allowed_token_ids": [END], "min_tokens": 1}),
    ("allowed_token_ids", {"allowed_token_ids": [X, END], "stop_token_ids": [X], "min_tokens": 1}),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(("param", "body"), NOTHING_TO_BEGIN_WITH)
def test_bans_that_leave_nothing_to_begin_with_are_refused(
    stack: StackFactory, path: str, param: str, body: Json, stream: bool
) -> None:
    server = stack()
    response = server.post(path, **({"prompt": "hi", "messages": CHAT_HI, "stream": stream, "max_tokens": 4} | body))
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert (error["code"], server.model.num_steps) == ("unsatisfiable", 0)


def test_a_form_that_bans_keep_from_its_end_is_refused(stack: StackFactory) -> None:
    body: Json = {"structured_outputs": {"choice": ["x"]}, "allowed_token_ids": [X]}
    response = stack().post(COMPLETIONS, prompt="hi", **body)
    assert response.status_code == 400
    assert f"allow {END}" in response.json()["error"]["message"]
    body["allowed_token_ids"] += [END]
    assert stack().completion(**body)["choices"][0]["text"] == "x"


LATE: list[Json] = [
    {"structured_outputs": {"choice": ["xyz"]}, "bad_words": ["y"]},
    {"allowed_token_ids": [X], "bad_words": ["xx"]},
    {"allowed_token_ids": [X, END], "bad_words": ["xx"], "min_tokens": 3},
]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("bans", LATE)
def test_bans_that_leave_nothing_later_are_the_requests_fault(stack: StackFactory, path: str, bans: Json) -> None:
    body = {"prompt": "hi", "messages": CHAT_HI, "max_tokens": 9, **bans}
    response = stack().post(path, **body, n=2)
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["code"]) == (400, "invalid_request_error", "unsatisfiable")
    assert "no token is left" in error["message"]
    *before, last = sse(stack().post(path, stream=True, **body).text)
    choices = [choice for event in before for choice in event["choices"]]
    assert "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices) == "x"
    assert last == {"error": error}


def test_what_is_possible_with_bans_is_answered(stack: StackFactory, model: Model) -> None:
    body = {"structured_outputs": {"regex": "[x-z]{2}"}, "bad_words": ["z", "xx"], "allowed_token_ids": [X, Y, END]}
    assert stack(model.says("zzz")).completion(**body)["choices"][0]["text"] == "xy"


def test_what_excludes_every_token_ends_that_request_alone(stack: StackFactory, model: Model) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        bodies: list[Json] = [{}, {"allowed_token_ids": [X], "bad_words": ["xx"]}]
        answers = [await client.post(COMPLETIONS, json={"prompt": "hi", **body}) for body in [*bodies, *bodies]]
        assert [answer.status_code for answer in answers] == [200, 400] * 2

    stack(model).run(ask)


def test_other_apis_tell_of_it_in_their_own_words(stack: StackFactory, tokenizer: Tokenizer) -> None:
    def post(path: str, **body: Any) -> httpx.Response:
        return stack(Exhausted(tokenizer)).post(path, model="tiny", **body)

    message = {"messages": CHAT_HI, "max_tokens": 9}
    for answer in (post("/v1/messages", **message), post("/v1/responses", input="hi")):
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    streamed = post("/v1/messages", **message, stream=True).text
    assert '"type":"invalid_request_error"' in streamed.split("event: error\n")[1]
    streamed = post("/v1/responses", input="hi", stream=True).text
    assert '"code":"invalid_prompt","message":"nothing is left"' in streamed.split("event: response.failed\n")[1]
