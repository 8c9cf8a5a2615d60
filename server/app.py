"""Builds the ASGI app from its parts."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random

from fastapi import FastAPI
from starlette.middleware import Middleware

from server import routes
from server.errors import HANDLERS
from server.lifecycle import Lifecycle
from server.loop_lag import LoopLag
from server.metrics import Metrics
from server.middleware.auth import Authentication
from server.middleware.body_limit import BodyLimit
from server.middleware.request_context import RequestContext
from server.observer import Tracer
from server.ports import Engine, Tokenizer
from server.protocol.responses import ErrorAnswer
from server.services import Services
from server.serving.prompts import PromptReader
from server.serving.response_store import ResponseStore
from server.settings import ServerSettings
from server.structured.compiler import GrammarCompiler
from server.warm_up import warm_up


def create_app(
    engine: Engine, tokenizer: Tokenizer, settings: ServerSettings, metrics: Metrics, tracer: Tracer | None = None
) -> FastAPI:
    """The app. It starts and stops `engine`; its `state.services` holds what the routes work with."""

    grammars = GrammarCompiler(tokenizer, engine.eos_token_ids)
    lifecycle = Lifecycle(engine, partial(warm_up, engine, tokenizer) if settings.warm_up else None)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        lag = LoopLag(metrics.loop_lagged)
        lag.start()
        await lifecycle.start()
        try:
            yield
        finally:
            await lag.stop()
            await lifecycle.stop()
            grammars.close()

    body_limit = Middleware(BodyLimit, max_bytes=settings.max_body_bytes, seconds=settings.body_seconds)
    middleware = [Middleware(RequestContext), body_limit]
    if settings.api_keys:
        middleware.insert(1, Middleware(Authentication, api_keys=settings.api_keys))
    app = FastAPI(
        title="scissorserve",
        version=settings.version,
        lifespan=lifespan,
        middleware=middleware,
        exception_handlers=dict(HANDLERS),
        responses={"default": {"model": ErrorAnswer, "description": "What went wrong"}},
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.services = Services(
        engine=engine,
        tokenizer=tokenizer,
        settings=settings,
        metrics=metrics,
        tracer=tracer,
        lifecycle=lifecycle,
        prompts=PromptReader(tokenizer, engine.max_model_len),
        grammars=grammars,
        responses=ResponseStore(),
        draw_seed=partial(Random(settings.seed).getrandbits, 63),
    )
    for module in pkgutil.iter_modules(routes.__path__, f"{routes.__name__}."):
        app.include_router(importlib.import_module(module.name).router)
    return app
