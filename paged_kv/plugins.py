"""The file name is the option's name: `--kv-policy h2o` is `paged_kv/policies/h2o.py`, imported when asked for."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any


def names(package: str) -> list[str]:
    """The options that `package` offers, as users write them, sorted."""
    return sorted(module.name.replace("_", "-") for module in iter_modules(import_module(package).__path__))


def load(package: str, name: str, attribute: str) -> Any:
    """`attribute` of the file in `package` that is called `name`. Raises ValueError, naming the options, if none is."""
    options = names(package)
    if name not in options:
        raise ValueError(f"unknown option {name!r}; choose one of: {', '.join(options)}")
    return getattr(import_module(f"{package}.{name.replace('-', '_')}"), attribute)
