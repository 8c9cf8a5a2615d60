"""What the routes work with: built once per app, handed to each request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request

from server.lifecycle import Lifecycle
from server.metrics import Metrics
from server.observer import Tracer
from server.ports import Engine, Tokenizer
from server.serving.prompts import PromptReader
from server.serving.response_store import ResponseStore
from server.settings import ServerSettings
from server.structured.compiler import GrammarCompiler


@dataclass(frozen=True, slots=True)
class Services:
    """The collaborators of every route. `draw_seed` gives a seed to a request that brings none."""

    engine: Engine
    tokenizer: Tokenizer
    settings: ServerSettings
    metrics: Metrics
    tracer: Tracer | None
    lifecycle: Lifecycle
    prompts: PromptReader
    grammars: GrammarCompiler
    responses: ResponseStore
    draw_seed: Callable[[], int]


def _services_of(request: Request) -> Services:
    return cast(Services, request.app.state.services)


CurrentServices = Annotated[Services, Depends(_services_of)]
