"""What goes wrong, as OpenAI's error object. One table says which exception becomes which status."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from models.errors import ChatTemplateError
from scheduler.errors import EngineDead, EngineDraining, QueueFull, RequestRejected
from server.protocol.responses import AnthropicError, ErrorAnswer
from server.request_id import REQUEST_ID

INVALID_REQUEST = "invalid_request_error"
_ANTHROPIC_PATH = "/v1/messages"
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}
_MAX_MESSAGES = 3  # of the mistakes in one body; clients mend one at a time
_MAX_SHOWN_INPUT = 60


class ApiError(Exception):
    """An answer other than success. The message is for the client and says what to change."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = headers

    @property
    def body(self) -> ErrorAnswer:
        """OpenAI's error object."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    @property
    def anthropic_body(self) -> AnthropicError:
        """Anthropic's error object, with the id of the request that is being worked on."""
        kind = _ANTHROPIC_TYPES.get(self.status, INVALID_REQUEST if self.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}, "request_id": REQUEST_ID.get()}

    def response(self, path: str) -> Response:
        """The HTTP answer to a request of `path`, which says whose API it is."""
        body = self.anthropic_body if path.startswith(_ANTHROPIC_PATH) else self.body
        return Response(to_json(body), self.status, self.headers, "application/json")


def internal_error(request_id: str) -> ApiError:
    """Says nothing but where to look: details of a failure are for the log only."""
    message = f"The server failed to answer this request. Its log says more under request id {request_id}."
    return ApiError(message, status=500, kind="server_error", code="internal_error")


def unsatisfiable(message: str, *, param: str | None = None) -> ApiError:
    """The parts of a request exclude each other, so that there is nothing to answer, or to go on with."""
    return ApiError(message, param=param, code="unsatisfiable")


def unavailable(message: str, code: str, *, retry_after: int | None = None) -> ApiError:
    """The server cannot take the request now; `retry_after` in seconds, where trying again makes sense."""
    headers = None if retry_after is None else {"Retry-After": str(retry_after)}
    return ApiError(message, status=503, kind="service_unavailable_error", code=code, headers=headers)


def as_api_error(error: Exception) -> ApiError | None:
    """The answer that `error` deserves; None for one that nobody foresaw."""
    return next((convert(error) for kind, convert in _TABLE if isinstance(error, kind)), None)


async def error_response(request: Request, error: Exception) -> Response:
    """Exception handler for everything in the table."""
    answer = as_api_error(error)
    assert answer is not None, "a handler was registered for an exception that the table lacks"
    return answer.response(request.url.path)


async def client_gone_response(_: Request, __: Exception) -> Response:
    """Nobody reads it; the status is what proxies log for such requests."""
    return Response(status_code=499)


def _http_error(error: HTTPException) -> ApiError:
    messages = {
        404: "There is nothing at this path. The API's paths begin with /v1, such as /v1/chat/completions.",
        405: f"This path does not take this method; it takes {(error.headers or {}).get('Allow', 'another')}.",
    }
    message = messages.get(error.status_code, error.detail)
    return ApiError(message, status=error.status_code, headers=error.headers)


def _invalid_body(error: RequestValidationError) -> ApiError:
    problems = error.errors()
    messages = [_describe(problem) for problem in problems[:_MAX_MESSAGES]]
    if len(problems) > _MAX_MESSAGES:
        messages.append(f"and {len(problems) - _MAX_MESSAGES} more")
    return ApiError("; ".join(messages), param=_path(problems[0]["loc"]))


def _describe(problem: Mapping[str, Any]) -> str:
    path = _path(problem["loc"])
    if path is None:
        return "The body must be a JSON object"
    if problem["type"] == "missing":
        return f"{path}: this field is required"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{path}: {message} (got {_shortened(problem['input'])})"


def _path(location: tuple[str | int, ...]) -> str | None:
    """`messages[0].content` for ("body", "messages", 0, "content")."""
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location[1:])
    return path.removeprefix(".") or None


def _shortened(value: object) -> str:
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, int) and value.bit_length() > 64:
        return "a number of many digits"
    text = to_json(value[: _MAX_SHOWN_INPUT + 1] if isinstance(value, str) else value).decode()
    return text if len(text) <= _MAX_SHOWN_INPUT else text[:_MAX_SHOWN_INPUT] + "..."


_TABLE: tuple[tuple[type[Exception], Callable[[Any], ApiError]], ...] = (
    (ApiError, lambda error: error),
    (RequestRejected, lambda error: ApiError(str(error), param=error.param, code=error.code)),
    (QueueFull, lambda error: unavailable(str(error), "queue_full", retry_after=1)),
    (EngineDraining, lambda error: unavailable(str(error), "shutting_down", retry_after=5)),
    (EngineDead, lambda error: unavailable(str(error), "engine_dead")),
    (ChatTemplateError, lambda error: ApiError(str(error), code="chat_template_error")),
    (RequestValidationError, _invalid_body),
    (HTTPException, _http_error),
)

HANDLERS: Mapping[Any, Any] = {kind: error_response for kind, _ in _TABLE} | {ClientDisconnect: client_gone_response}
