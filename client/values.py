"""What may stand behind a flag: parsers that say in one line what is wrong."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import httpx


def whole(least: int) -> Callable[[str], int]:
    """Whole numbers from `least` on."""

    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"{value!r} must be a whole number from {least} on")
        return number

    return parse


def real(least: float, *, below: float = math.inf, inclusive: bool = True) -> Callable[[str], float]:
    """Finite numbers from `least` on, without `least` itself unless `inclusive`, and below `below`."""
    wanted = f"{'at least' if inclusive else 'above'} {least:g}" + (f" and below {below:g}" if below < math.inf else "")

    def parse(value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not least <= number < below or (number == least and not inclusive):
            raise argparse.ArgumentTypeError(f"{value!r} must be a number {wanted}")
        return number

    return parse


def rate(value: str) -> float:
    """Requests per second; `inf` is one."""
    return math.inf if value == "inf" else real(0, inclusive=False)(value)


def base_url(value: str) -> str:
    """An http or https URL."""
    try:
        url = httpx.URL(value)
    except httpx.InvalidURL as error:
        raise argparse.ArgumentTypeError(f"{value!r} is no URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise argparse.ArgumentTypeError(f"{value!r} must be like http://127.0.0.1:8000")
    return value


def host(value: str) -> str:
    """The name or address of a machine, an IPv6 address in brackets or without."""
    name = f"[{value}]" if ":" in value and not value.startswith("[") else value
    try:
        taken = httpx.URL(f"http://{name}/").host
    except httpx.InvalidURL as error:
        raise argparse.ArgumentTypeError(f"{value!r} is no host: {error}") from error
    if taken.lower() != name.strip("[]").lower():
        raise argparse.ArgumentTypeError(f"{value!r} must be a host alone, like 127.0.0.1")
    return name


def port(value: str) -> int:
    """A number from 1 to 65535."""
    number = whole(1)(value)
    if number > 65535:
        raise argparse.ArgumentTypeError(f"{value!r} must be at most 65535")
    return number


def header(value: str) -> tuple[str, str]:
    """NAME=VALUE of an HTTP header."""
    name, equals, content = value.partition("=")
    if not equals or not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
        raise argparse.ArgumentTypeError(f"{value!r} must be NAME=VALUE")
    return name, header_value(content)


def header_value(value: str) -> str:
    """Printable ASCII, stripped."""
    value = value.strip()
    if not (value.isascii() and value.isprintable()):
        raise argparse.ArgumentTypeError("must be printable ASCII")
    return value


def pair(value: str) -> tuple[str, str]:
    """KEY=VALUE."""
    name, equals, content = value.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{value!r} must be KEY=VALUE")
    return name, content


def json_object(value: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"no JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise argparse.ArgumentTypeError("must be a JSON object, like '{\"top_p\": 0.9}'")
    return cast(dict[str, Any], parsed)


def some_of(options: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """A list of `options`, separated by commas."""

    def parse(value: str) -> tuple[str, ...]:
        names = tuple(value.split(","))
        for name in names:
            if name not in options:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {','.join(options)}")
        return names

    return parse


def percentiles(value: str) -> tuple[float, ...]:
    """Numbers from 0 to 100, separated by commas."""
    try:
        numbers = tuple(float(part) for part in value.split(","))
    except ValueError:
        numbers = (math.nan,)
    if not all(0 <= number <= 100 for number in numbers):
        raise argparse.ArgumentTypeError(f"{value!r} must be numbers from 0 to 100, like 50,90,99")
    return numbers


def objective(metrics: Sequence[str]) -> Callable[[str], tuple[str, float]]:
    """METRIC:MS, such as ttft:200."""

    def parse(value: str) -> tuple[str, float]:
        name, _, limit = value.partition(":")
        if name not in metrics:
            raise argparse.ArgumentTypeError(
                f"{value!r} must be like ttft:200, of {','.join(metrics)}, in milliseconds"
            )
        return name, real(0, inclusive=False)(limit)

    return parse
