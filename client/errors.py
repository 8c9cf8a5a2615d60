"""What stops a run before it starts."""

from __future__ import annotations


class BenchError(Exception):
    """The run cannot start. The message is one line that says what to change."""


class Interrupted(Exception):
    """Ctrl-C before anything was measured."""
