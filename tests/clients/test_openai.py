"""openai, with strict checks of every answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from conftest import KEY, MODEL, Server
from pydantic import BaseModel

HI: Any = [{"role": "user", "content": "Say hi."}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 30}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


class Person(BaseModel):
    """What an answer has to be."""

    name: str
    mood: Literal["happy", "sad"]


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    """A strict client."""
    with openai.OpenAI(base_url=server.v1, api_key=KEY, max_retries=0, _strict_response_validation=True) as strict:
        yield strict


def test_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    body: Any = {"model": MODEL, "messages": HI, "max_tokens": 8, "temperature": 0}
    whole = client.chat.completions.create(**body)
    text = ""
    for chunk in client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}):
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage
    assert text == whole.choices[0].message.content != ""
    assert whole.usage is not None
    assert usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_completions_with_echo_and_logprobs(client: openai.OpenAI) -> None:
    # The client's types know no null, though OpenAI's own API gives none for the first token of a prompt.
    lenient = client.copy(_extra_kwargs={"_strict_response_validation": False})
    whole = lenient.completions.create(model=MODEL, prompt="The sky is", echo=True, logprobs=2, max_tokens=3)
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert "".join(logprobs.tokens) == whole.choices[0].text


def test_parsed_answers(client: openai.OpenAI) -> None:
    whole = client.chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": "Who?"}], response_format=Person, max_tokens=200
    )
    assert isinstance(whole.choices[0].message.parsed, Person)


def test_a_required_call_streamed(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL,
        messages=[{"role": "user", "content": "The weather in Rome?"}],
        tools=[WEATHER],
        tool_choice="required",
        max_tokens=100,
    ) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.tool_calls is not None
    assert message.tool_calls[0].function.name == "get_weather"
    assert set(message.tool_calls[0].function.parsed_arguments) == {"city"}


def test_responses(client: openai.OpenAI) -> None:
    whole = client.responses.parse(model=MODEL, input="Who?", text_format=Person, max_output_tokens=200)
    assert isinstance(whole.output_parsed, Person)
    kept = client.responses.create(model=MODEL, input="Say hi.", max_output_tokens=8, store=True)
    again = client.responses.create(model=MODEL, input="More.", previous_response_id=kept.id, max_output_tokens=8)
    assert again.usage is not None
    assert kept.usage is not None
    assert again.usage.input_tokens > kept.usage.input_tokens


def test_models_and_errors(client: openai.OpenAI) -> None:
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=HI, temperature=9)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
