"""Calibrations on disk: one safetensors file for one model, whose fingerprint stands in its header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from models.checkpoint import Checkpoint
from models.errors import ModelError
from models.whole_file import write_whole
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
    """Store `calibration`; `made_from` is for people who want to know, and to repeat it. Raises ModelError."""
    tensors = {
        "weights": calibration.scorer.weights.half(),
        "bias": calibration.scorer.bias,
        "lane_shares": calibration.profile.shares,
        "lane_rows": calibration.profile.rows,
    }
    if not _all_finite(tensors):
        raise ModelError("no calibration can be made: the model computes what is no number, or too large for one")
    write_whole(path, tensors, {"calibration": json.dumps({**made_from, "version": _VERSION, "model": fingerprint})})


def read_calibration(path: Path, fingerprint: str) -> Calibration:
    """The calibration in `path`. Raises ModelError if it is damaged, or of another model than `fingerprint` says."""
    again = f"make it anew with `scissorserve calibrate MODEL --out {path}`"
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("calibration", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (OSError, SafetensorError, ValueError) as error:
        raise ModelError(f"the calibration {path} cannot be read: {error}") from error
    if not isinstance(header, dict) or header.get("version") != _VERSION:
        raise ModelError(f"{path} is no calibration of a form that is known here; {again}")
    if header.get("model") != fingerprint:
        raise ModelError(f"the calibration {path} was made for another model; {again}")
    if not _fit_together(tensors) or not _all_finite(tensors):
        raise ModelError(f"the calibration {path} is damaged; {again}")
    scorer = LinearScorer(tensors["weights"].float(), tensors["bias"])
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


def _all_finite(tensors: Mapping[str, Tensor]) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())


def _fit_together(tensors: Mapping[str, Tensor]) -> bool:
    """Whether all that a calibration has is there, in shapes that belong to one model."""
    if not tensors.keys() >= {"weights", "bias", "lane_shares", "lane_rows"}:
        return False
    weights, bias, shares, rows = (tensors[name] for name in ("weights", "bias", "lane_shares", "lane_rows"))
    if weights.ndim != 4 or bias.shape != weights.shape[:3] or weights.shape[2] != 2 or shares.ndim != 1:
        return False
    ascend = shares.numel() >= 2 and bool((shares.diff() > 0).all())
    return ascend and rows.shape == (shares.numel(), weights.shape[0] * weights.shape[1])
