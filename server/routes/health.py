"""GET /health, /ready and /ping, for load balancers and those who restart what has failed."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from server.errors import unavailable
from server.services import CurrentServices

router = APIRouter()

_SECONDS_TO_RETRY = 5


@router.get("/health", response_class=Response)
@router.head("/health", include_in_schema=False)
@router.get("/ping", response_class=Response)
@router.head("/ping", include_in_schema=False)
async def health(request: Request, services: CurrentServices) -> Response:
    """200 and nothing else while requests make progress, else 503 and why."""
    return _answer(request, services.lifecycle.unhealthy_reason(), "unhealthy")


@router.get("/ready", response_class=Response)
@router.head("/ready", include_in_schema=False)
async def ready(request: Request, services: CurrentServices) -> Response:
    """200 and nothing else while requests are welcome, else 503 and why: still warming up, shutting down, unhealthy."""
    return _answer(request, services.lifecycle.unready_reason(), "not_ready")


def _answer(request: Request, reason: str | None, code: str) -> Response:
    if reason is None:
        return Response()
    return unavailable(reason, code, retry_after=_SECONDS_TO_RETRY).response(request.url.path)
