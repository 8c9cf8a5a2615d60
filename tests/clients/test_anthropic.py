"""anthropic, with strict checks of every answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from conftest import KEY, MODEL, Server

HI: Any = [{"role": "user", "content": "Say hi."}]
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 30}},
        "required": ["city"],
    },
}


@pytest.fixture
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    """A strict client."""
    with anthropic.Anthropic(
        base_url=server.url, api_key=KEY, max_retries=0, _strict_response_validation=True
    ) as strict:
        yield strict


def test_messages_whole_and_streamed(client: anthropic.Anthropic) -> None:
    body: Any = {"model": MODEL, "messages": HI, "max_tokens": 8, "extra_body": {"temperature": 0}}
    whole = client.messages.create(**body)
    with client.messages.stream(**body) as stream:
        streamed = stream.get_final_message()
    texts = [[block.text for block in message.content] for message in (whole, streamed)]
    assert texts[0] == texts[1] != []
    counted = client.messages.count_tokens(model=MODEL, messages=HI)
    for usage in (whole.usage, streamed.usage):  # a prompt that was just read is in the prefix cache
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted.input_tokens


def test_a_tool_that_must_be_used_and_its_result(client: anthropic.Anthropic) -> None:
    question: Any = {"role": "user", "content": "The weather in Rome?"}
    body: Any = {"model": MODEL, "max_tokens": 100, "tools": [WEATHER]}
    whole = client.messages.create(**body, messages=[question], tool_choice={"type": "any"})
    use = whole.content[-1]
    assert use.type == "tool_use"
    assert set(use.input) == {"city"}
    assert whole.stop_reason == "tool_use"
    answer: Any = {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in whole.content]}
    result: Any = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}]}
    assert client.messages.create(**body, messages=[question, answer, result]).usage.output_tokens > 0
