"""langchain-openai, litellm and instructor."""

from __future__ import annotations

from typing import Any, Literal

import instructor
import litellm
import openai
import pytest
from conftest import KEY, MODEL, Server
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Person(BaseModel):
    """A person."""

    name: str
    mood: Literal["happy", "sad"]


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


@pytest.fixture
def langchain(server: Server) -> ChatOpenAI:
    """LangChain's chat model."""
    return ChatOpenAI(
        base_url=server.v1, api_key=KEY, model=MODEL, temperature=0, max_tokens=200, max_retries=0, stream_usage=True
    )


def test_langchain_streams_what_it_invokes(langchain: ChatOpenAI) -> None:
    short = langchain.bind(max_tokens=8)
    whole = short.invoke("Say hi.")
    chunks = list(short.stream("Say hi."))
    assert "".join(chunk.content for chunk in chunks) == whole.content
    usage = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert [each["output_tokens"] for each in usage] == [whole.usage_metadata["output_tokens"]]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_structured_output(langchain: ChatOpenAI, method: Any) -> None:
    assert isinstance(langchain.with_structured_output(Person, method=method).invoke("Who are you?"), Person)


def test_langchain_tools(langchain: ChatOpenAI) -> None:
    answer = langchain.bind_tools([get_weather], tool_choice="any").invoke("The weather in Rome?")
    assert answer.tool_calls[0]["name"] == "get_weather"
    assert set(answer.tool_calls[0]["args"]) == {"city"}


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_litellm(server: Server, provider: str) -> None:
    body: Any = {
        "model": f"{provider}/{MODEL}",
        "messages": [{"role": "user", "content": "Say hi."}],
        "api_base": server.v1,
        "api_key": KEY,
        "max_tokens": 8,
        "temperature": 0,
    }
    whole = litellm.completion(**body)
    chunks = litellm.completion(**body, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content != ""
    with pytest.raises(litellm.exceptions.BadRequestError):
        litellm.completion(**(body | {"temperature": 9}))


@pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA])
def test_instructor(server: Server, mode: instructor.Mode) -> None:
    client = instructor.from_openai(openai.OpenAI(base_url=server.v1, api_key=KEY), mode=mode)
    answer = client.chat.completions.create(
        model=MODEL,
        response_model=Person,
        messages=[{"role": "user", "content": "Ann is happy. Who is she, and what is her mood?"}],
        max_tokens=200,
        temperature=0,
        max_retries=3,
    )
    assert isinstance(answer, Person)
