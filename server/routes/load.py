"""GET /load, for routers that spread requests."""

from __future__ import annotations

from fastapi import APIRouter

from server.services import CurrentServices

router = APIRouter()


@router.get("/load")
async def load(services: CurrentServices) -> dict[str, int]:
    """Sequences that run or wait."""
    stats = services.engine.stats()
    return {"server_load": stats.num_running + stats.num_waiting}
