"""Parsers of tool calls: what they read does not depend on how the text was cut, and no text is lost."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_kv.plugins import load, names
from server.protocol.tools import Tool
from server.tools.events import Arguments, CallBegins, Event, ParserFamily, Said
from server.tools.forced import forced_calls

PARSERS = "server.tools.parsers"
TOOLS = [
    Tool.model_validate({"type": "function", "function": {"name": name, "parameters": parameters}})
    for name, parameters in (
        ("f", {"type": "object", "properties": {"a": {"type": "integer"}, "s": {"type": "string"}}}),
        ("g", {}),
    )
]
Reading = tuple[str, list[tuple[str, object]]]


def family(name: str) -> ParserFamily:
    """The parsers of a name."""
    loaded: ParserFamily = load(PARSERS, name, "PARSER")
    return loaded


def events_of(name: str, pieces: Sequence[str]) -> list[Event]:
    """All that a parser tells of a text in pieces."""
    parser = family(name).parser(TOOLS)
    return [event for piece in pieces for event in parser.push(piece)] + parser.end()


def reading(events: Sequence[Event]) -> Reading:
    """The text, and the calls with their arguments parsed where they can be."""
    text, calls = "", []
    for event in events:
        if isinstance(event, Said):
            text += event.text
        elif isinstance(event, CallBegins):
            calls.append([event.name, ""])
        else:
            calls[-1][1] += event.text
    return text, [(name, parsed(arguments)) for name, arguments in calls]


def parsed(arguments: str) -> object:
    """Arguments as a value, or as they are if they were cut off."""
    try:
        value: object = json.loads(arguments)
    except ValueError:
        return arguments
    return value


F, G = ("f", {"a": 1}), ("g", {})
CALL_F = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
CALL_G = '<tool_call>{"name": "g", "arguments": {}}</tool_call>'
SAMPLES: list[tuple[str, str, Reading]] = [
    ("hermes", "just text, {not} a <tool> call", ("just text, {not} a <tool> call", [])),
    ("hermes", CALL_F, ("", [F])),
    ("hermes", f"Let me see.\n\n{CALL_F}\n{CALL_G}\n", ("Let me see.", [F, G])),
    ("hermes", f"{CALL_F}\nDone. ", ("Done. ", [F])),
    ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', ("", [F])),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', ("", [F])),
    ("hermes", '<tool_call>{"name": "g", "arguments": null}', ("", [G])),
    ("hermes", '<tool_call>{"name": "g"}</tool_call>', ("", [G])),
    ("hermes", '<tool_call>{"id": 5, "name": "f", "parameters": {"a": 1}}<tool_call>{"name": "g"}', ("", [F, G])),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"s": "a } \\" {", "b": [{}, "]"]}}</tool_call>',
        ("", [("f", {"s": 'a } " {', "b": [{}, "]"]})]),
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1', ("", [("f", '{"a": 1')])),
    ("hermes", 'ab <tool_call>\n{"nam', ('ab <tool_call>\n{"nam', [])),
    ("hermes", "ab <tool_call>oops</tool_call> cd", ("ab <tool_call>oops</tool_call> cd", [])),
    ("hermes", "x <tool_ca", ("x <tool_ca", [])),
    ("hermes", "text and blanks \n ", ("text and blanks \n ", [])),
    ("hermes", " \n ", (" \n ", [])),
    ("llama3-json", '{"name": "f", "parameters": {"a": 1}}', ("", [F])),
    ("llama3-json", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}; {"name": "g"}', ("", [F, G])),
    ("llama3-json", "no call {}", ("no call {}", [])),
    ("llama3-json", '{"answer": 42}', ('{"answer": 42}', [])),
    ("llama3-json", '{"answer": 42', ('{"answer": 42', [])),
    ("llama3-json", " {oops} and so on", (" {oops} and so on", [])),
    ("llama3-json", "<|python", ("<|python", [])),
    ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]', ("", [F, G])),
    ("mistral", 'Hm.\n[TOOL_CALLS][{"arguments": {"a": 1}, "name": "f", "id": "x"}]\nDone', ("Hm.Done", [F])),
    ("mistral", '[TOOL_CALLS]f{"a": 1}[TOOL_CALLS]g{}', ("", [F, G])),
    ("mistral", '[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{"a": 1}', ("", [F])),
    ("mistral", '[TOOL_CALLS] f [ARGS] {"s": "} \\" ]", "b": [{}]}', ("", [("f", {"s": '} " ]', "b": [{}]})])),
    ("mistral", '[TOOL_CALLS]f{"a": 1', ("", [("f", '{"a": 1')])),
    ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}', ("", [F])),
    ("mistral", "[TOOL_CALLS] []", ("[TOOL_CALLS] []", [])),
    ("mistral", "[TOOL_CALLS] [5]", ("[TOOL_CALLS] [5]", [])),
    ("mistral", "[TOOL_CALLS]no call, {really}", ("[TOOL_CALLS]no call, {really}", [])),
    ("mistral", "x [TOOL_CALLS]f", ("x [TOOL_CALLS]f", [])),
    ("mistral", "[TOOL_CALLS]" + "f" * 300, ("[TOOL_CALLS]" + "f" * 300, [])),
    ("mistral", "a list [1, 2] and [TOOL", ("a list [1, 2] and [TOOL", [])),
    ("pythonic", '[f(a=1), g()]', ("", [F, G])),
    ("pythonic", '[f(a=-1, s="x]")]', ("", [("f", {"a": -1, "s": "x]"})])),
    ("pythonic", "[1, 2] are numbers", ("[1, 2] are numbers", [])),
    ("pythonic", "[f(a=open('x'))]", ("[f(a=open('x'))]", [])),
    ("pythonic", "[f(1)]", ("[f(1)]", [])),
    ("pythonic", "[f(a={1, 2})]", ("[f(a={1, 2})]", [])),
    ("pythonic", "plain", ("plain", [])),
    (
        "qwen3-coder",
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=s>\n2\nx\n</parameter>\n</function>\n</tool_call>",
        ("", [("f", {"a": 1, "s": "2\nx"})]),
    ),
    ("qwen3-coder", "Hm.\n<tool_call><function=g></function></tool_call>", ("Hm.", [G])),
    ("qwen3-coder", "<tool_call>oops</function> x", ("<tool_call>oops</function> x", [])),
    ("qwen3-coder", "<tool_call><function=f>", ("<tool_call><function=f>", [])),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "expected"), SAMPLES)
def test_texts_are_read(name: str, text: str, expected: Reading) -> None:
    assert reading(events_of(name, [text])) == expected


@pytest.mark.parametrize(("name", "text", "expected"), SAMPLES)
def test_how_a_text_is_cut_does_not_matter(name: str, text: str, expected: Reading) -> None:
    assert reading(events_of(name, text)) == expected
    for cut in range(1, len(text)):
        assert reading(events_of(name, [text[:cut], text[cut:]])) == expected


FRAGMENTS = ["<tool_call>", "</tool_call>", '{"name": ', '"f"', ', "arguments": ', '{"a": 1}', "}", "[", "]", " ", "\n"]
FRAGMENTS += [
    "f(a=1)",
    "<function=f>",
    "</function>",
    "<|python_tag|>",
    '"',
    "\\",
    ":",
    ",",
    "x",
    "null",
    ";",
    "[TOOL_CALLS]",
    "[ARGS]",
    "f",
]


@pytest.mark.parametrize("name", names(PARSERS))
@given(pieces=st.lists(st.sampled_from(FRAGMENTS), max_size=12))
def test_no_text_breaks_a_parser_and_what_is_no_call_is_shown(name: str, pieces: list[str]) -> None:
    whole = "".join(pieces)
    assert reading(events_of(name, pieces)) == reading(events_of(name, [whole])) == reading(events_of(name, whole))
    text, calls = reading(events_of(name, pieces))
    if not calls:
        assert text == whole


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", CALL_F),
        ("qwen", CALL_F),
        ("llama3-json", '{"name": "f", "parameters": {"a": 1}}'),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]'),
        ("mistral", '[TOOL_CALLS]f{"a": 1}'),
    ],
)
def test_arguments_come_while_they_are_written(name: str, text: str) -> None:
    events = events_of(name, text)
    assert isinstance(events[0], CallBegins)
    assert "".join(event.text for event in events[1:] if isinstance(event, Arguments)) == '{"a": 1}'
    assert len(events) > 5


@pytest.mark.parametrize("name", [name for name in names(PARSERS) if family(name).form is not None])
def test_what_is_forced_is_what_the_parser_reads(name: str) -> None:
    form = family(name).form
    assert form is not None
    assert json.dumps(form.begin)[1:-1] in forced_calls(TOOLS, form, parallel=True).grammar
    written = f'{form.begin}{{"name": "f", "{form.arguments_key}": {{"a": 1}}}}{form.end}'
    again = f'{form.begin}{{"name": "g", "{form.arguments_key}": {{}}}}{form.end}'
    assert reading(events_of(name, [written + form.separator + again])) == ("", [F, G])
