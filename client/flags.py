"""A flag is a field of a frozen dataclass: its name, type, default and help stand in one place."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

T = TypeVar("T")

_KEY = "flag"


@dataclass(frozen=True, slots=True)
class _Flag:
    names: tuple[str, ...]
    help: str
    settings: dict[str, Any]

    @property
    def dest(self) -> str:
        return self.names[0].lstrip("-").replace("-", "_")


def flag(
    *names: str,
    help: str,  # noqa: A002  the word that argparse has for it
    default: Any = None,
    parse: Callable[[str], Any] | None = None,
    shown: str | None = None,
    **settings: Any,
) -> Any:
    """A field that `add` turns into the flag `names`; `parse` raises argparse.ArgumentTypeError.

    Fields of several classes that have the first name in common are one flag. The help ends with the default, as
    `shown` if that is given; further `settings` are argparse's. A default dict must not be changed by anybody.
    """
    if parse is not None:
        settings["type"] = parse
    text = f"{default:g}" if isinstance(default, float) else str(default)
    told = shown if shown is not None else "" if default in (None, False, "", (), {}) else text
    entry = _Flag(names, f"{help}; default: {told}" if told else help, settings)
    if isinstance(default, dict):
        return field(default_factory=lambda: default, metadata={_KEY: entry})
    return field(default=default, metadata={_KEY: entry})


def add(
    group: argparse._ArgumentGroup, owners: Iterable[type[Any]], known: set[str], told: Mapping[str, str] | None = None
) -> None:
    """Adds the flags of the dataclasses `owners` to `group`, and their names to `known`; those in it are left out.

    `{name}` in a help text becomes `told[name]`.
    """
    for owner in owners:
        for entry in _flags(owner).values():
            new = [name for name in entry.names if name not in known]
            if not new:
                continue
            text = entry.help.replace("%", "%%") if entry.names[0] in new else f"the same as {entry.names[0]}"
            for name, value in (told or {}).items():
                text = text.replace(f"{{{name}}}", value)
            group.add_argument(*new, dest=entry.dest, default=argparse.SUPPRESS, help=text, **entry.settings)
            known.update(new)


def read(owner: type[T], given: Mapping[str, Any]) -> T:
    """An `owner` with what was given on the command line, and its defaults."""
    return owner(**{name: given[entry.dest] for name, entry in _flags(owner).items() if entry.dest in given})


def names_of(owner: type[Any]) -> dict[str, str]:
    """The first name of each flag of `owner`, by the key under which argparse keeps what was given."""
    return {entry.dest: entry.names[0] for entry in _flags(owner).values()}


def _flags(owner: type[Any]) -> dict[str, _Flag]:
    return {one.name: one.metadata[_KEY] for one in fields(owner) if _KEY in one.metadata}
