"""The names under which the model is served."""

from __future__ import annotations

from server.errors import ApiError
from server.settings import ServerSettings


def served_name(asked: str | None, settings: ServerSettings) -> str:
    """`asked` if the model has that name, the first name if none was given. Raises ApiError (404) otherwise."""
    if asked is None:
        return settings.model_names[0]
    if asked not in settings.model_names:
        names = ", ".join(settings.model_names)
        raise ApiError(
            f"The model {asked[:100]!r} is not served here; choose one of: {names}.",
            status=404,
            param="model",
            code="model_not_found",
        )
    return asked
