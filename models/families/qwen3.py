"""Qwen3: Llama's shape with an RMS norm on each head of Q and K."""

from __future__ import annotations

from models.families.qwen2 import build

__all__ = ["build"]
