"""The servers that are measured, or the ways to ask one server."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Any

from client.values import base_url, json_object


@dataclass(frozen=True, slots=True)
class Target:
    """`extra_body` is merged into its requests. An empty name means that it is the only one.

    `model` is what the server calls its model; empty until somebody has asked.
    """

    name: str
    base_url: str
    extra_body: dict[str, Any] = field(default_factory=dict)
    model: str = ""

    def url(self, path: str) -> str:
        """Where `path` lies. The base URL may end in /v1, as for OpenAI's SDKs."""
        path = "/" + path.lstrip("/")
        return (self._root if path.startswith("/v1/") else self.base_url.rstrip("/")) + path

    @property
    def metrics_url(self) -> str:
        """Where the server shows its metrics to Prometheus."""
        return self._root + "/metrics"

    @property
    def _root(self) -> str:
        return self.base_url.rstrip("/").removesuffix("/v1")


@dataclass(frozen=True, slots=True)
class TargetFlag:
    """NAME=URL, NAME={...} or both, with a space between: what `--target` says. `base_url` None: the common one."""

    name: str
    base_url: str | None
    extra_body: dict[str, Any]

    def resolve(self, common_url: str) -> Target:
        """The target, at `common_url` if it has no URL of its own."""
        return Target(self.name, self.base_url or common_url, self.extra_body)


def parse_target(value: str) -> TargetFlag:
    """Reads one `--target`. Raises argparse.ArgumentTypeError."""
    name, equals, rest = value.partition("=")
    if not equals or not name.strip() or not rest.strip():
        raise argparse.ArgumentTypeError(f"{value!r} must be NAME=URL or NAME='{{\"field\": ...}}' or both")
    rest = rest.strip()
    url, _, body = ("", "", rest) if rest.startswith("{") else rest.partition(" ")
    return TargetFlag(name.strip(), base_url(url) if url else None, json_object(body) if body.strip() else {})
