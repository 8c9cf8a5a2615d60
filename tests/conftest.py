"""Fixtures and settings that every part's tests share."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from models.source import default_cache_dir, prepare_model

settings.register_profile("scissorserve", deadline=None)  # a busy machine is no failure
settings.load_profile("scissorserve")

_SECONDS_TO_EXIT = 60.0


def pytest_sessionfinish() -> None:
    """See to it that a thread that outlives its test fails the run, and says where it is, instead of hanging it."""
    faulthandler.dump_traceback_later(_SECONDS_TO_EXIT, exit=True, file=sys.__stderr__)


@pytest.fixture(scope="session")
def default_model_folder() -> Path:
    """The default model as a Hugging Face style folder, converted at the first use."""
    return prepare_model(None, default_cache_dir())


@pytest.fixture(autouse=True)
def few_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """One thread for small tensors: on a busy machine, threads that wait for each other cost more than they save."""
    before = torch.get_num_threads()
    if request.node.get_closest_marker("model") is None:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
