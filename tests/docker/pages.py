"""The commands that docs/deployment.md and docs/operations.md give."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]


def commands() -> list[list[str]]:
    """Every command of both documents, as words; a pipe ends one, so does `&&`."""
    found = []
    for name in ("deployment.md", "operations.md"):
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                parts = " ".join("\n" if word in ("&&", "|") else shlex.quote(word) for word in words).splitlines()
                found += [shlex.split(part) for part in parts if part.strip()]
    return found


def of_docker(*verb: str) -> list[list[str]]:
    """What follows `docker VERB` in each such command."""
    head = ["docker", *verb]
    bare = [without_environment(words) for words in commands()]
    return [words[len(head) :] for words in bare if words[: len(head)] == head]


def without_environment(words: list[str]) -> list[str]:
    return words[1:] if re.fullmatch(r"[A-Z_]+=.*", words[0]) else words
