"""GET /health and /ping, for load balancers."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from server.errors import unavailable
from server.services import CurrentServices

router = APIRouter()


@router.get("/health", response_class=Response)
@router.head("/health", include_in_schema=False)
@router.get("/ping", response_class=Response)
@router.head("/ping", include_in_schema=False)
async def health(request: Request, services: CurrentServices) -> Response:
    """200 and nothing else while requests make progress, else 503 and why."""
    reason = services.lifecycle.unhealthy_reason()
    return Response() if reason is None else unavailable(reason, "unhealthy").response(request.url.path)
