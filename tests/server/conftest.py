"""The stack as fixtures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from models.tokenizer import Tokenizer
from tests.server.stack import Live, Model, Stack, make_stack, tiny_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """See `tiny_tokenizer`."""
    return tiny_tokenizer()


@pytest.fixture
def model(tokenizer: Tokenizer) -> Model:
    """A model that says "ok" until it is told more."""
    return Model(tokenizer)


@pytest.fixture
def stack(tokenizer: Tokenizer) -> Callable[..., Stack]:
    """`stack(model, engine={"max_model_len": 50}, api_keys=("k",))`: a fresh stack at each call."""

    def make(model: Model | None = None, *, engine: Mapping[str, Any] | None = None, **settings: Any) -> Stack:
        return make_stack(model or Model(tokenizer), tokenizer, engine or {}, settings)

    return make


@pytest.fixture
def live() -> Iterator[Callable[[Stack], Live]]:
    """`live(stack)`: it on a socket, until the test ends."""
    started: list[Live] = []

    def start(stack: Stack) -> Live:
        started.append(Live(stack))
        return started[-1]

    yield start
    for server in started:
        server.close()
