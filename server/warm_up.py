"""The first request is the server's own: it pays for what only first steps cost, and shows that the model computes."""

from __future__ import annotations

from scheduler.errors import EngineError
from scheduler.request import GenerationRequest, SamplingParams
from server.ports import Engine, Tokenizer

_TEXT = "The first request is the server's own."


async def warm_up(engine: Engine, tokenizer: Tokenizer) -> str | None:
    """Read a sentence and write two tokens; returns why that failed, if it did."""
    most = max(1, engine.max_model_len // 2)
    prompt = tuple(tokenizer.encode(_TEXT))[:most]
    params = SamplingParams(max_tokens=min(2, engine.max_model_len - len(prompt)), temperature=0.0)
    try:
        async with engine.submit(GenerationRequest("warm-up", prompt, params)) as stream:
            failures = [event.finish.error async for event in stream if event.finish is not None]
    except EngineError as error:
        return str(error)
    return next((str(failure) for failure in failures if failure is not None), None)
