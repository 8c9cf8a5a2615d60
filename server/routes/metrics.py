"""GET /metrics, for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from server.services import CurrentServices

router = APIRouter()


@router.get("/metrics", response_class=Response)
async def metrics(services: CurrentServices) -> Response:
    """Everything counted so far."""
    exposition = services.metrics.exposition(
        services.engine.stats(),
        healthy=services.lifecycle.unhealthy_reason() is None,
        ready=services.lifecycle.unready_reason() is None,
    )
    return Response(exposition, media_type=CONTENT_TYPE_LATEST)
