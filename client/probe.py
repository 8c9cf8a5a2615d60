"""Asks the server what it is, before any load."""

from __future__ import annotations

import asyncio
import time

import httpx
from pydantic import BaseModel, ValidationError

from client.errors import BenchError
from client.wire import error_text

PROBE_TIMEOUT_S = 10.0
PROBE_EVERY_S = 1.0


class _Model(BaseModel):
    id: str


class _Models(BaseModel):
    data: list[_Model]


async def wait_until_ready(client: httpx.AsyncClient, url: str, timeout_s: float) -> httpx.Response:
    """Asks `url` until it answers, with anything but 503, and returns that answer.

    Tries at least once. Raises BenchError if there is none within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            response = await client.get(url, timeout=PROBE_TIMEOUT_S)
        except httpx.HTTPError as error:
            problem = f"cannot reach {url} ({str(error) or type(error).__name__})"
        else:
            if response.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                return response
            problem = f"{url} answers 503 ({error_text(response.content)})"
        if time.monotonic() >= deadline:
            raise BenchError(
                f"{problem}: start the server, correct --base-url, or wait longer with --ready-check-timeout-sec"
            )
        await asyncio.sleep(PROBE_EVERY_S)


def first_model(listing: httpx.Response) -> str:
    """The first model in the answer to GET /v1/models. Raises BenchError if there is none."""
    answer = f"{listing.url} answered {listing.status_code}"
    if listing.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise BenchError(f"{answer}: give a valid --api-key or set OPENAI_API_KEY")
    try:
        models = _Models.model_validate_json(listing.content).data
    except ValidationError:
        models = []
    if not models:
        raise BenchError(f"{answer}, which names no model: give --model or correct --base-url")
    return models[0].id
