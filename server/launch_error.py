"""The one error of putting the parts together."""

from __future__ import annotations


class LaunchError(Exception):
    """The options cannot work together; the message says which to change."""
