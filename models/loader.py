"""From a model folder to a model that computes."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import torch

from models import families
from models.causal_lm import CausalLM
from models.checkpoint import Checkpoint
from models.errors import ModelError
from models.weights import WeightReader


def load_model(checkpoint: Checkpoint, dtype: torch.dtype = torch.float32, *, quantize: bool = False) -> CausalLM:
    """The model in `checkpoint`, its weights converted to `dtype`; `quantize`: see `WeightReader`.

    Raises ModelError if it is not supported.
    """
    known = sorted(module.name for module in iter_modules(families.__path__))
    family = checkpoint.config.get("model_type")
    if family not in known:
        raise ModelError(f"models of type {family!r} are not supported; these are: {', '.join(known)}")
    if checkpoint.config.get("quantization_config"):
        raise ModelError("quantised safetensors weights (quantization_config) are not supported; use the original ones")
    model: CausalLM = import_module(f"models.families.{family}").build(
        checkpoint.config, WeightReader(checkpoint, dtype, quantize=quantize)
    )
    return model
