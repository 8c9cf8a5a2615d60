"""Calibrations on disk: one safetensors file for one model, whose fingerprint stands in its header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from models.checkpoint import Checkpoint
from models.errors import ModelError
from paged_kv.calibration import Calibration
from paged_kv.lanes import LaneProfile
from paged_kv.scoring import LinearScorer

_VERSION = 1
_SHIPPED = Path(__file__).parent / "calibrations"
_BESIDE_MODEL = "calibration.safetensors"


def calibration_path(fingerprint: str, cache_dir: Path) -> Path:
    """Where a calibration of the model with this fingerprint is kept on this machine."""
    return cache_dir / "calibrations" / f"{fingerprint[:16]}.safetensors"


def write_calibration(path: Path, calibration: Calibration, fingerprint: str, made_from: Mapping[str, Any]) -> None:
    """Store `calibration`; `made_from` is for people who want to know, and to repeat it."""
    header = {"version": _VERSION, "model": fingerprint, **made_from}
    tensors = {
        "weights": calibration.scorer.weights.half(),
        "bias": calibration.scorer.bias,
        "lane_shares": calibration.profile.shares,
        "lane_rows": calibration.profile.rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, {"calibration": json.dumps(header)})


def read_calibration(path: Path, fingerprint: str) -> Calibration:
    """The calibration in `path`. Raises ModelError if it is damaged, or of another model than `fingerprint` says."""
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("calibration", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (OSError, SafetensorError, ValueError) as error:
        raise ModelError(f"the calibration {path} cannot be read: {error}") from error
    if header.get("version") != _VERSION:
        raise ModelError(f"{path} is no calibration of a form that is known here; make it anew")
    if header["model"] != fingerprint:
        raise ModelError(f"the calibration {path} was made for another model; make one with `scissorserve calibrate`")
    scorer = LinearScorer(tensors["weights"].float(), tensors["bias"])
    if not all(bool(torch.isfinite(tensor).all()) for tensor in (scorer.weights, scorer.bias)):
        raise ModelError(f"the calibration {path} holds what is no number; make it anew")
    return Calibration(scorer, LaneProfile(tensors["lane_shares"], tensors["lane_rows"]))


def find_calibration(checkpoint: Checkpoint, cache_dir: Path, chosen: Path | None = None) -> Calibration | None:
    """`chosen`, else one beside the model, one made on this machine, one that is shipped. Raises ModelError."""
    fingerprint = checkpoint.fingerprint()
    if chosen is not None:
        return read_calibration(chosen, fingerprint)
    own = calibration_path(fingerprint, cache_dir)
    for path in (checkpoint.folder / _BESIDE_MODEL, own, _SHIPPED / own.name):
        if path.is_file():
            return read_calibration(path, fingerprint)
    return None
