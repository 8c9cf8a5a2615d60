"""The file name is the option's name: `--dataset-name random` is `client/datasets/random.py`.

A plugin file exposes one frozen dataclass; its fields are its flags, see `client.flags`.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any


def load_all(package: str, attribute: str) -> dict[str, type[Any]]:
    """What the files in `package` expose as `attribute`, by the name that users write, sorted."""
    found = sorted(module.name for module in iter_modules(import_module(package).__path__))
    return {name.replace("_", "-"): getattr(import_module(f"{package}.{name}"), attribute) for name in found}
