"""OpenAI's own client, which checks every answer against its types."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import openai
import pytest

from tests.server.stack import CHAT_HI, CHAT_HI_TEXT, Live, Model, Stack

StackFactory = Callable[..., Stack]


@pytest.fixture
def client(stack: StackFactory, model: Model, live: Callable[[Stack], Live]) -> Iterator[openai.OpenAI]:
    """A strict client of a server that needs a key."""
    model.says("Dobrý den 😀", to=CHAT_HI_TEXT).says("Dobrý den 😀").says("boom" * 5, to="bad").failing.add("bad")
    server = live(stack(model, api_keys=("secret",)))
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="secret", max_retries=0, _strict_response_validation=True
    ) as strict:
        yield strict


def test_models(client: openai.OpenAI) -> None:
    assert [entry.id for entry in client.models.list()] == ["tiny", "org/alias"]
    assert client.models.retrieve("org/alias").id == "org/alias"


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=CHAT_HI, logprobs=True, top_logprobs=2, n=2)  # type: ignore[arg-type]
    assert [choice.message.content for choice in answer.choices] == ["Dobrý den 😀"] * 2
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content is not None
    assert answer.usage is not None
    assert answer.usage.total_tokens > 0


def test_chat_stream(client: openai.OpenAI) -> None:
    text = ""
    usage = None
    with client.chat.completions.create(
        model="tiny",
        messages=CHAT_HI,  # type: ignore[arg-type]
        stream=True,
        logprobs=True,
        stream_options={"include_usage": True},
    ) as stream:
        for chunk in stream:
            usage = chunk.usage
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert text == "Dobrý den 😀"
    assert usage is not None


def test_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="hi", logprobs=2, max_tokens=50)
    assert answer.choices[0].text == "Dobrý den 😀"
    assert answer.choices[0].logprobs is not None


def test_completion_stream(client: openai.OpenAI) -> None:
    # The client's types know no chunk without a finish reason, though OpenAI's own API sends them.
    lenient = client.copy(_extra_kwargs={"_strict_response_validation": False})
    with lenient.completions.create(model="tiny", prompt="hi", stream=True, max_tokens=50) as stream:
        assert "".join(chunk.choices[0].text for chunk in stream) == "Dobrý den 😀"


def test_errors_become_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.NotFoundError, match="not served"):
        client.completions.create(model="other", prompt="hi")
    with pytest.raises(openai.BadRequestError, match="temperature") as refused:
        client.completions.create(model="tiny", prompt="hi", temperature=5)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.InternalServerError):
        client.completions.create(model="tiny", prompt="bad")


def test_an_error_in_a_stream_is_raised(client: openai.OpenAI) -> None:
    lenient = client.copy(_extra_kwargs={"_strict_response_validation": False})
    with lenient.completions.create(model="tiny", prompt="bad", stream=True) as stream:
        assert next(stream).choices[0].finish_reason is None
        with pytest.raises(openai.APIError, match="engine failed"):
            list(stream)
