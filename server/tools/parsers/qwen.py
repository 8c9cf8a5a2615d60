"""Qwen 2.5 and 3 write calls as Hermes does."""

from __future__ import annotations

from server.tools.parsers import hermes

PARSER = hermes.PARSER
