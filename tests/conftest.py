"""Fixtures and settings that every part's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from models.source import default_cache_dir, prepare_model

settings.register_profile("scissorserve", deadline=None)  # a busy machine is no failure
settings.load_profile("scissorserve")


@pytest.fixture(scope="session")
def default_model_folder() -> Path:
    """The default model as a Hugging Face style folder, converted at the first use."""
    return prepare_model(None, default_cache_dir())
