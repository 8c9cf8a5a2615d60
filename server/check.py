"""`--check`: what would run, as a configuration file that repeats it, with the memory plan in its comments."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from server.engine_options import EngineOptions
from server.launch import Assembly
from server.settings import ServerSettings

_NOT_SHOWN = frozenset({"api_key", "check", "config", "version"})
_RENAMED = {"block_size": "page_size"}  # in EngineOptions


def report(options: Namespace, settings: ServerSettings, assembly: Assembly) -> str:
    """A YAML document that `--config` takes. Keys are left out: they are secrets."""
    lines = [f"# scissorserve {settings.version}: this works, and as a --config file it starts the same server.", "#"]
    lines += [f"# {line}" for line in (*assembly.summary, "", *assembly.plan.lines())]
    if settings.api_keys:
        lines.append(f"# API keys: {len(settings.api_keys)}, not shown")
    shown = dict(configuration(options, settings, assembly.options))
    return "\n".join([*(line.rstrip() for line in lines), "", yaml.safe_dump(shown, sort_keys=False)])


def configuration(options: Namespace, settings: ServerSettings, engine: EngineOptions) -> Iterator[tuple[str, Any]]:
    """Flags and values as a configuration file has them; `engine` has the choices that `options` left open."""
    settled = {field.name: getattr(engine, field.name) for field in dataclasses.fields(engine)}
    named = vars(options) | {"served_model_name": list(settings.model_names)}
    for name, given in named.items():
        value = settled.get(_RENAMED.get(name, name), given)
        if value is not None and name not in _NOT_SHOWN:
            yield name.replace("_", "-"), str(value) if isinstance(value, Path) else value
