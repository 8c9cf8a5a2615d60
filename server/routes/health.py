"""GET /health and /ping, for load balancers."""

from __future__ import annotations

from fastapi import APIRouter, Response

from server.errors import unavailable
from server.services import CurrentServices

router = APIRouter()


@router.api_route("/health", methods=["GET", "HEAD"], response_class=Response)
@router.api_route("/ping", methods=["GET", "HEAD"], response_class=Response)
async def health(services: CurrentServices) -> Response:
    """200 and nothing else while requests make progress, else 503 and why."""
    reason = services.lifecycle.unhealthy_reason()
    return Response() if reason is None else unavailable(reason, "unhealthy").response()
