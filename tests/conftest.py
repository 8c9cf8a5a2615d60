"""Fixtures that every part's tests may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.source import default_cache_dir, prepare_model


@pytest.fixture(scope="session")
def default_model_folder() -> Path:
    """The default model as a Hugging Face style folder, converted at the first use."""
    return prepare_model(None, default_cache_dir())
