"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from server.services import CurrentServices, Services
from server.serving.models import served_name

router = APIRouter()


@router.get("/v1/models")
async def list_models(services: CurrentServices) -> dict[str, Any]:
    """Every name of the model."""
    return {"object": "list", "data": [_entry(name, services) for name in services.settings.model_names]}


@router.get("/v1/models/{name:path}")
async def retrieve_model(name: str, services: CurrentServices) -> dict[str, Any]:
    """One of them. Names may hold slashes."""
    return _entry(served_name(name, services.settings), services)


def _entry(name: str, services: Services) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": services.settings.created,
        "owned_by": "scissorserve",
        "root": services.settings.model_names[0],
        "parent": None,
        "max_model_len": services.engine.max_model_len,
    }
