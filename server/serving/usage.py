"""The usage object."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.request import KVUsage
from server.protocol.responses import Usage


def usage_of(prompt_tokens: int, completion_tokens: int, choices: Sequence[KVUsage]) -> Usage:
    """Tokens as the text has them, and what the choices' sequences held at their end, summed."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(choice.cached_tokens for choice in choices)},
        "kv_cache": {
            "rows_kept": round(sum(choice.rows_kept for choice in choices), 2),
            "rows_evicted": round(sum(choice.rows_evicted for choice in choices), 2),
            "preemptions": sum(choice.preemptions for choice in choices),
        },
    }
