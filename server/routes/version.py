"""GET /version."""

from __future__ import annotations

from fastapi import APIRouter

from server.services import CurrentServices

router = APIRouter()


@router.get("/version")
async def version(services: CurrentServices) -> dict[str, str]:
    """What runs here."""
    return {"version": services.settings.version}
