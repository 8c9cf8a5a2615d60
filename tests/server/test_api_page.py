"""docs/api.md says of every parameter what the code does with it."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

import pytest
from pydantic import BaseModel

from server.protocol.chat import ChatRequest
from server.protocol.completions import CompletionRequest
from server.protocol.fields import NoEffect, Refusal
from server.protocol.messages import MessagesRequest
from server.protocol.responses_request import ResponsesRequest
from server.protocol.sampling import GenerationFields
from server.protocol.tokenize import TokenizeRequest

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
COMMON = set(GenerationFields.model_fields)
NO_EFFECT_THOUGH_CHECKED = {"user"}
SECTIONS: dict[str, tuple[type[BaseModel], Collection[str]]] = {
    "Both completions": (GenerationFields, ()),
    "Completions": (CompletionRequest, COMMON),
    "Chat": (ChatRequest, COMMON),
    "Messages": (MessagesRequest, ()),
    "Responses": (ResponsesRequest, ()),
    "Tokenize": (TokenizeRequest, ()),
}


def names_in(text: str) -> set[str]:
    """Everything in backticks that can be a parameter."""
    return set(re.findall(r"`([a-z_0-9]+)`", text))


def described(section: str) -> dict[str, set[str]]:
    """Parameters by what the page says of them."""
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    rows = re.findall(r"^\| (`.*?) \|", text, re.M)
    ignored, refused = (re.findall(rf"^{word}: (.*?)\.\n", text, re.M | re.S) for word in ("Without effect", "Refused"))
    return {
        "served": names_in(" ".join(rows)),
        "ignored": names_in(" ".join(ignored)),
        "refused": names_in(" ".join(refused)),
    }


def in_code(model: type[BaseModel], without: Collection[str]) -> dict[str, set[str]]:
    """Parameters by what the code does with them."""
    found: dict[str, set[str]] = {"served": set(), "ignored": set(), "refused": set()}
    for name, field in model.model_fields.items():
        if name in without:
            continue
        if any(isinstance(mark, Refusal) for mark in field.metadata):
            kind = "refused"
        elif name in NO_EFFECT_THOUGH_CHECKED or any(isinstance(mark, NoEffect) for mark in field.metadata):
            kind = "ignored"
        else:
            kind = "served"
        found[kind].add(field.alias or name)
    return found


@pytest.mark.parametrize("section", SECTIONS)
def test_the_page_says_what_the_code_does(section: str) -> None:
    assert described(section) == in_code(*SECTIONS[section])
