"""What a container may take of the machine."""

from __future__ import annotations

from pathlib import Path

CONTROL_GROUP = Path("/sys/fs/cgroup")

_FILES = (
    ("memory.max", "memory.current"),  # version 2
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),  # version 1
)


def memory_limit_and_use(control_group: Path = CONTROL_GROUP) -> tuple[int, int] | None:
    """Bytes that this container may take, and takes now; None if it has no limit, or there are no control groups."""
    for limit, used in _FILES:
        try:
            return int((control_group / limit).read_text()), int((control_group / used).read_text())
        except (OSError, ValueError):  # not there, or "max"
            continue
    return None
