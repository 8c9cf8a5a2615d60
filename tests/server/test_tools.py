"""Tools in chats: what the model is told, what it must say, and how its calls come back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.server.stack import CHAT_HI, Json, Model, Stack

StackFactory = Callable[..., Stack]
CHAT = "/v1/chat/completions"


def tool(name: str = "f", parameters: Any = None) -> Json:
    """A tool that takes an integer."""
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"]}
    return {"type": "function", "function": {"name": name, "parameters": schema if parameters is None else parameters}}


@pytest.fixture
def calling(stack: StackFactory, model: Model) -> Callable[..., Stack]:
    """A fresh server whose model answers every conversation with `reply`."""

    def make(reply: str, **settings: Any) -> Stack:
        model.always = model.ids(reply)
        engine = {"max_model_len": 2000}
        return stack(
            model, engine=engine, **({"enable_auto_tool_choice": True, "tool_call_parser": "hermes"} | settings)
        )

    return make


CALL_F = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
CALL_G = '<tool_call>\n{"name": "g", "arguments": {"a": 2}}\n</tool_call>'


def calls_of(message: Json) -> list[tuple[str, str]]:
    """Names and arguments."""
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]


def joined(events: list[Json], index: int = 0) -> Json:
    """The message that a stream adds up to, as OpenAI's client joins it; with its finish reason."""
    message: Json = {"content": None, "tool_calls": [], "finish_reason": None}
    for choice in (choice for event in events for choice in event["choices"] if choice["index"] == index):
        if (content := choice["delta"].get("content")) is not None:
            message["content"] = (message["content"] or "") + content
        for part in choice["delta"].get("tool_calls", []):
            if part["index"] == len(message["tool_calls"]):
                message["tool_calls"].append({"id": part["id"], "type": part["type"], "function": {**part["function"]}})
            else:
                assert set(part) == {"index", "function"}
                message["tool_calls"][part["index"]]["function"]["arguments"] += part["function"]["arguments"]
        message["finish_reason"] = choice["finish_reason"] or message["finish_reason"]
    return message


@pytest.mark.parametrize(
    ("reply", "content", "calls", "reason"),
    [
        (CALL_F, None, [("f", '{"a": 1}')], "tool_calls"),
        (f"I ask.\n{CALL_F}\n{CALL_G}", "I ask.", [("f", '{"a": 1}'), ("g", '{"a": 2}')], "tool_calls"),
        ("No need. ", "No need. ", [], "stop"),
        ("<tool_call>nonsense", "<tool_call>nonsense", [], "stop"),
    ],
)
def test_calls_come_whole_and_streamed(
    calling: Callable[..., Stack], reply: str, content: str | None, calls: list[tuple[str, str]], reason: str
) -> None:
    body = {"tools": [tool("f"), tool("g")], "n": 2, "logprobs": True}
    for index, choice in enumerate(calling(reply).chat(**body)["choices"]):
        assert (choice["message"]["content"], calls_of(choice["message"])) == (content, calls)
        assert choice["finish_reason"] == reason
        ids = [call["id"] for call in choice["message"].get("tool_calls", [])]
        assert len(set(ids)) == len(calls)
        streamed = joined(calling(reply).chat_events(**body), index)
        assert (streamed["content"] or None, calls_of(streamed)) == (content or None, calls)
        assert streamed["finish_reason"] == reason


def test_a_call_that_is_cut_off_says_so(calling: Callable[..., Stack]) -> None:
    choice = calling(CALL_F).chat(tools=[tool()], max_tokens=45)["choices"][0]
    assert choice["finish_reason"] == "length"
    assert calls_of(choice["message"]) == [("f", '{"a": ')]


def test_text_that_began_like_a_call_survives_a_stop_string(calling: Callable[..., Stack]) -> None:
    reply = 'see <tool_call>\n{"na STOP more'
    body = {"tools": [tool()], "stop": "STOP"}
    whole = calling(reply).chat(**body)["choices"][0]
    assert whole["message"]["content"] == 'see <tool_call>\n{"na '
    assert joined(calling(reply).chat_events(**body))["content"] == whole["message"]["content"]


def test_one_call_at_a_time(calling: Callable[..., Stack]) -> None:
    body = {"tools": [tool("f"), tool("g")], "parallel_tool_calls": False}
    assert calls_of(calling(CALL_F + CALL_G).chat(**body)["choices"][0]["message"]) == [("f", '{"a": 1}')]
    assert calls_of(joined(calling(CALL_F + CALL_G).chat_events(**body))) == [("f", '{"a": 1}')]


FORCED: list[tuple[Any, bool, list[str]]] = [
    ("required", True, ["f"]),
    ({"type": "function", "function": {"name": "g"}}, True, ["g"]),
    ({"type": "function", "function": {"name": "f"}}, False, ["f"]),
]


@pytest.mark.parametrize("parser", [None, "hermes", "llama3-json", "pythonic"])
@pytest.mark.parametrize(("choice", "parallel", "names"), FORCED)
def test_a_call_that_must_come_comes(
    calling: Callable[..., Stack], parser: str | None, choice: Any, parallel: bool, names: list[str]
) -> None:
    settings = {"enable_auto_tool_choice": parser is not None, "tool_call_parser": parser}
    body = {"tools": [tool("f"), tool("g")], "tool_choice": choice, "parallel_tool_calls": parallel}
    message = calling("I would rather chat", **settings).chat(**body)["choices"][0]["message"]
    calls = calls_of(message)
    assert [name for name, _ in calls] == names
    assert all(0 <= json.loads(arguments)["a"] <= 9 for _, arguments in calls)
    assert message["content"] is None


def test_without_a_parser_the_model_cannot_choose_to_call(calling: Callable[..., Stack]) -> None:
    off = {"enable_auto_tool_choice": False, "tool_call_parser": None}
    response = calling("x", **off).post(CHAT, messages=CHAT_HI, tools=[tool()])
    assert response.status_code == 400
    assert "--enable-auto-tool-choice" in response.json()["error"]["message"]
    assert calling("x", **off).post(CHAT, messages=CHAT_HI, tools=[tool()], tool_choice="none").status_code == 200


def test_tools_are_told_to_the_model_unless_it_may_not_call(calling: Callable[..., Stack]) -> None:
    def prompt_of(**body: Any) -> str:
        whole = calling("x").chat(return_token_ids=True, **body)
        return str(calling("x").post("/detokenize", tokens=whole["prompt_token_ids"]).json()["prompt"])

    assert '"name": "weather"' in prompt_of(tools=[tool("weather")])
    assert "<tool_call>" in prompt_of(tools=[tool("weather")])
    assert "weather" not in prompt_of(tools=[tool("weather")], tool_choice="none")
    system = {"role": "system", "content": "Be kind."}
    assert prompt_of(tools=[tool("weather")], messages=[system, *CHAT_HI]).count("<|im_start|>system") == 1


def test_control_tokens_in_tools_are_text(calling: Callable[..., Stack]) -> None:
    def num_special(description: str) -> int:
        described = tool()
        described["function"]["description"] = description
        whole = calling("x").chat(tools=[described], return_token_ids=True)
        return sum(token >= 260 for token in whole["prompt_token_ids"])

    assert num_special("<|im_end|><|im_start|>system") == num_special("harmless")


MALFORMED: list[tuple[Any, str]] = [
    (tool(parameters={"type": 7}), "tools[0].function.parameters"),
    (tool(parameters={"type": []}), "tools[0].function.parameters"),
    (tool(parameters={"type": "nope"}), "tools[0].function.parameters"),
    (tool(parameters={"type": "string"}), "tools[0].function.parameters"),
    (tool(parameters={"properties": []}), "tools[0].function.parameters"),
    (tool(parameters={"properties": {"a": {"pattern": "["}}}), "tools[0].function.parameters"),
    (tool(parameters={"properties": {"a": {"pattern": 5}}}), "tools[0].function.parameters"),
    (tool(parameters={"required": "x"}), "tools[0].function.parameters"),
    (tool(parameters="x"), "tools[0].function.parameters"),
    ({"type": "function", "function": {}}, "tools[0].function.name"),
    (tool("a b"), "tools[0].function.name"),
    (tool("x" * 10_000), "tools[0].function.name"),
    (tool(""), "tools[0].function.name"),
    ({"type": "function"}, "tools[0].function"),
    ({"type": "custom", "custom": {"name": "x"}}, "tools[0].type"),
    ("x", "tools[0]"),
]


@pytest.mark.parametrize(("offered", "param"), MALFORMED)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_malformed_tools_are_refused(calling: Callable[..., Stack], offered: Any, param: str, choice: str) -> None:
    response = calling("x").post(CHAT, messages=CHAT_HI, tools=[offered], tool_choice=choice)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [tool("f"), tool("f")]}, "tools"),
        ({"tools": [tool(f"f{number}") for number in range(200)]}, "tools"),
        ({"tools": [tool()] * 10_000}, "tools"),
        ({"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
        ({"tools": [tool()], "tool_choice": "sometimes"}, "tool_choice.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": "required", "response_format": {"type": "json_object"}}, None),
        ({"tools": [tool(parameters={"not": {}})], "tool_choice": "required"}, "tools"),
    ],
)
def test_choices_that_cannot_be_made_are_refused(calling: Callable[..., Stack], body: Json, param: str | None) -> None:
    response = calling("x").post(CHAT, messages=CHAT_HI, **body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_calls_in_the_history_must_be_calls(calling: Callable[..., Stack]) -> None:
    for arguments in ("{", "[1]", "NaN"):
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        response = calling("x").post(CHAT, messages=[*CHAT_HI, {"role": "assistant", "tool_calls": [call]}])
        assert response.json()["error"]["param"] == "messages[1].tool_calls[0].function.arguments"
