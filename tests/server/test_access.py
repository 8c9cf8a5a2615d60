"""Who may ask what: keys, routes, sizes."""

from __future__ import annotations

import ast
import inspect
import pkgutil
from collections.abc import AsyncIterator, Callable
from importlib import import_module
from typing import Any

import httpx
import pytest

from server import routes
from server.middleware import auth
from server.middleware.auth import OPEN_PATHS
from server.settings import ServerSettings
from tests.server.stack import Stack

StackFactory = Callable[..., Stack]

ROUTES = {
    "/detokenize": "key",
    "/health": "open",
    "/load": "key",
    "/metrics": "open",
    "/openapi.json": "key",
    "/ping": "key",
    "/ready": "open",
    "/tokenize": "key",
    "/tokenizer_info": "key",
    "/v1/chat/completions": "key",
    "/v1/completions": "key",
    "/v1/messages": "key",
    "/v1/messages/count_tokens": "key",
    "/v1/models": "key",
    "/v1/responses": "key",
    "/v1/responses/{response_id}": "key",
    "/v1/models/{name:path}": "key",
    "/version": "open",
}


def test_every_route_and_whether_it_needs_a_key(stack: StackFactory) -> None:
    server = stack(api_keys=("secret",))
    modules = [import_module(module.name) for module in pkgutil.iter_modules(routes.__path__, f"{routes.__name__}.")]
    known = [*server.app.routes, *(route for module in modules for route in module.router.routes)]
    paths = sorted({route.path for route in known if hasattr(route, "path")})

    async def ask(client: httpx.AsyncClient) -> dict[str, str]:
        found = {}
        for path in paths:
            statuses = {
                (await client.request(method, path.replace("{name:path}", "tiny"), headers=headers)).status_code
                for method in ("GET", "POST", "OPTIONS", "HEAD")
                for headers in ({}, {"authorization": "Bearer wrong"})
            }
            found[path] = "key" if statuses == {401} else "open"
        return found

    assert server.run(ask) == ROUTES
    assert {path for path, access in ROUTES.items() if access == "open"} == OPEN_PATHS


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 401),
        ([("Authorization", "Bearer one")], 200),
        ([("Authorization", "Bearer two")], 200),
        ([("authorization", "bearer two")], 200),
        ([("Authorization", "BEARER  two ")], 200),
        ([("Authorization", "Bearer")], 401),
        ([("Authorization", "Bearer ")], 401),
        ([("Authorization", "one")], 401),
        ([("Authorization", "Basic one")], 401),
        ([("Authorization", "Bearer on")], 401),
        ([("Authorization", "Bearer onee")], 401),
        ([("Authorization", "Bearer one two")], 401),
        ([("Authorization", b"Bearer \xff\xfe")], 401),
        ([("Authorization", "Bearer one"), ("Authorization", "Bearer one")], 401),
        ([("X-Api-Key", "one")], 200),
        ([("X-Api-Key", "onee")], 401),
        ([("X-Api-Key", "one"), ("X-Api-Key", "one")], 401),
        ([("X-Api-Key", "one"), ("Authorization", "Bearer one")], 200),
        ([("X-Api-Key", "one"), ("Authorization", "Bearer two")], 401),
        ([("X-Api-Key", "Bearer one")], 401),
    ],
)
def test_keys(stack: StackFactory, headers: list[tuple[str, Any]], status: int) -> None:
    response = stack(api_keys=("one", "two")).run(lambda client: client.get("/v1/models", headers=headers))
    assert response.status_code == status
    if status == 401:
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.json()["error"]["type"] == "authentication_error"
        assert response.headers["x-request-id"]


def test_paths_near_an_open_one_are_not_open(stack: StackFactory) -> None:
    async def ask(client: httpx.AsyncClient) -> list[int]:
        paths = ["/health/", "/healthy", "/health/../v1/models", "//health", "/HEALTH", "/metrics/x", "/health%2f"]
        return [(await client.get(path)).status_code for path in paths]

    assert set(stack(api_keys=("one",)).run(ask)) == {401}


def test_keys_are_compared_in_constant_time() -> None:
    tree = ast.parse(inspect.getsource(auth))
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert {"hmac.compare_digest", "hashlib.sha256"} <= calls
    compared = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Compare)]
    assert not any("digest" in comparison for comparison in compared)


@pytest.mark.parametrize("keys", [("",), ("one", ""), ("schlüssel",), ("new\nline",)])
def test_keys_that_cannot_work_are_refused_at_the_start(keys: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="key"):
        ServerSettings(("tiny",), api_keys=keys)


@pytest.mark.parametrize("names", [(), ("",), ("tiny", "")])
def test_a_model_needs_names(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="name"):
        ServerSettings(names)


PATHS = ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"]


@pytest.mark.parametrize("path", PATHS)
def test_a_body_that_says_it_is_too_large(stack: StackFactory, path: str) -> None:
    response = stack(max_body_bytes=1000).post(path, prompt="x" * 1000)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (413, "body_too_large")
    assert "1000 bytes" in error["message"]


@pytest.mark.parametrize("path", PATHS)
def test_a_body_without_end(stack: StackFactory, path: str) -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 100
            yield b" " * 100

    headers = {"content-type": "application/json"}
    server = stack(max_body_bytes=1000)
    response = server.run(lambda client: client.post(path, content=endless(), headers=headers))
    assert response.status_code == 413
    assert response.headers["connection"] == "close"
    assert read <= 1200


def test_a_body_of_the_largest_size(stack: StackFactory) -> None:
    body = b'{"prompt": "hi"}'
    headers = {"content-type": "application/json"}
    for limit, status in ((len(body), 200), (len(body) - 1, 413)):
        server = stack(max_body_bytes=limit)
        response = server.run(lambda client: client.post("/v1/completions", content=body, headers=headers))
        assert response.status_code == status
