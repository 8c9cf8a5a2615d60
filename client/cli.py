"""The command line: flags named as in `vllm bench serve`, checked before anything is sent."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

import httpx

from client.metrics import METRICS
from client.wire import DEFAULT_ENDPOINTS, Backend

PROG = "scissorserve-bench"
EXAMPLES = """examples:
  %(prog)s --max-concurrency 8 --input-len 512 --output-len 64
  %(prog)s --backend openai-chat --request-rate 2 --dataset-name text --dataset-path book.txt --save-result
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The flags, one field each, parsed and checked."""

    base_url: str
    endpoint: str | None
    backend: Backend
    model: str | None
    api_key: str | None
    header: list[tuple[str, str]]
    ready_check_timeout_sec: float
    request_timeout_sec: float
    dataset_name: str
    dataset_path: Path | None
    tokenizer: Path | None
    random_input_len: int
    random_output_len: int
    random_range_ratio: float
    random_vocab_size: int
    num_prompts: int
    num_warmups: int
    request_rate: float
    burstiness: float
    max_concurrency: int | None
    seed: int
    temperature: float | None
    ignore_eos: bool
    extra_body: dict[str, Any]
    percentile_metrics: list[str]
    metric_percentiles: list[float]
    disable_tqdm: bool
    save_result: bool
    save_detailed: bool
    result_dir: Path | None
    result_filename: str | None

    def url(self, path: str | None = None) -> str:
        """Where `path` lies, by default the endpoint under test. The base URL may end in /v1, as for OpenAI's SDKs."""
        path = "/" + (path or self.endpoint or DEFAULT_ENDPOINTS[self.backend]).lstrip("/")
        base = self.base_url.rstrip("/")
        return (base.removesuffix("/v1") if path.startswith("/v1/") else base) + path

    @property
    def headers(self) -> dict[str, str]:
        """Sent with every request."""
        bearer = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return bearer | dict(self.header)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (--help lists all options)\n")


def parse_options(argv: Sequence[str] | None = None) -> Options:
    """Reads the command line. A mistake in it ends the program with status 2 and one line."""
    parser = _build_parser()
    options = Options(**vars(parser.parse_args(argv)))
    if options.dataset_name == "text" and options.dataset_path is None:
        parser.error("--dataset-name text needs --dataset-path FILE")
    if options.dataset_name == "random" and options.dataset_path is not None:
        parser.error("--dataset-path is only read with --dataset-name text")
    return options


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROG,
        usage="%(prog)s [options]",
        description="Stream against any OpenAI-compatible server and report latency and throughput.",
        epilog=EXAMPLES,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=32, width=110),
        allow_abbrev=False,
    )
    _add_server(parser.add_argument_group("server"))
    _add_prompts(parser.add_argument_group("prompts and answers"))
    _add_load(parser.add_argument_group("load"))
    _add_report(parser.add_argument_group("report"))
    return parser


def _add_server(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--base-url", type=_base_url, default="http://127.0.0.1:8000", metavar="URL", help="default: %(default)s")
    add("--endpoint", metavar="PATH", help="default: /v1/completions, for openai-chat /v1/chat/completions")
    add("--backend", choices=list(DEFAULT_ENDPOINTS), default="openai", help="completions (default) or chat")
    add("--model", metavar="NAME", help="default: the first that the server lists")
    add(
        "--api-key", type=_header_value, default=_key_from_environment(), metavar="KEY", help="default: $OPENAI_API_KEY"
    )
    add("--header", type=_header, nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="further headers")
    wait = "wait this long for a server that is starting; default: %(default)s"
    add("--ready-check-timeout-sec", type=_real(0), default="0", metavar="S", help=wait)
    limit = "a request that takes longer has failed; default: %(default)s"
    add("--request-timeout-sec", type=_real(0, inclusive=False), default="21600", metavar="S", help=limit)


def _add_prompts(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--dataset-name", choices=["random", "text"], default="random", help="random tokens (default) or a text file")
    add("--dataset-path", type=Path, metavar="FILE", help="the text that prompts are cut from")
    add("--tokenizer", type=Path, metavar="PATH", help="tokenizer.json or its folder: makes lengths of text exact")
    tokens_in = "tokens in a prompt, also of text; default: %(default)s"
    add("--random-input-len", "--input-len", type=_whole(1), default="1024", metavar="N", help=tokens_in)
    tokens_out = "tokens to generate; default: %(default)s"
    add("--random-output-len", "--output-len", type=_whole(1), default="128", metavar="N", help=tokens_out)
    spread = "both lengths vary by up to this share; default: %(default)s"
    add("--random-range-ratio", type=_real(0, below=1), default="0", metavar="R", help=spread)
    vocabulary = "random token ids are below this; default: %(default)s"
    add("--random-vocab-size", type=_whole(2), default="10000", metavar="N", help=vocabulary)
    add("--temperature", type=_real(0), metavar="T", help="default: the server's")
    add("--ignore-eos", action="store_true", help="generate the full length, where the server knows ignore_eos")
    add("--extra-body", type=_json_object, default={}, metavar="JSON", help="fields to merge into every request body")


def _add_load(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--num-prompts", type=_whole(1), default="100", metavar="N", help="requests to send; default: %(default)s")
    warm_up = "requests to send before these, uncounted; default: %(default)s"
    add("--num-warmups", type=_whole(0), default="0", metavar="N", help=warm_up)
    add("--max-concurrency", type=_whole(1), metavar="N", help="requests in flight at most; default: no limit")
    rate = "requests per second; default: %(default)s, all at once or as --max-concurrency allows"
    add("--request-rate", type=_rate, default="inf", metavar="R", help=rate)
    burstiness = "of arrivals at a rate: 1 is Poisson, less comes in bursts, more evenly; default: %(default)s"
    add("--burstiness", type=_real(0, inclusive=False), default="1", metavar="B", help=burstiness)
    add("--seed", type=_whole(0), default="0", metavar="N", help="of prompts and arrivals; default: %(default)s")


def _add_report(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    shown = f"of {','.join(METRICS)}; default: %(default)s"
    add("--percentile-metrics", type=_metric_names, default="ttft,tpot,itl,e2el", metavar="A,B", help=shown)
    add("--metric-percentiles", type=_percentiles, default="99", metavar="P,Q", help="default: %(default)s")
    add("--disable-tqdm", action="store_true", help="no progress bar (there is none without a terminal)")
    add("--save-result", action="store_true", help="write the result as JSON")
    add("--save-detailed", action="store_true", help="the same, with latencies and text of every request")
    add("--result-dir", type=Path, metavar="DIR", help="default: the current folder; implies --save-result")
    add("--result-filename", metavar="NAME", help="default: made from load, model and time; implies --save-result")


def _whole(least: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"{value!r} must be a whole number from {least} on")
        return number

    return parse


def _real(least: float, *, below: float = math.inf, inclusive: bool = True) -> Callable[[str], float]:
    wanted = f"{'at least' if inclusive else 'above'} {least:g}" + (f" and below {below:g}" if below < math.inf else "")

    def parse(value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not least <= number < below or (number == least and not inclusive):
            raise argparse.ArgumentTypeError(f"{value!r} must be a number {wanted}")
        return number

    return parse


def _rate(value: str) -> float:
    return math.inf if value == "inf" else _real(0, inclusive=False)(value)


def _base_url(value: str) -> str:
    try:
        url = httpx.URL(value)
    except httpx.InvalidURL as error:
        raise argparse.ArgumentTypeError(f"{value!r} is no URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise argparse.ArgumentTypeError(f"{value!r} must be like http://127.0.0.1:8000")
    return value


def _header(value: str) -> tuple[str, str]:
    name, equals, content = value.partition("=")
    if not equals or not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
        raise argparse.ArgumentTypeError(f"{value!r} must be NAME=VALUE")
    return name, _header_value(content)


def _header_value(value: str) -> str:
    value = value.strip()
    if not (value.isascii() and value.isprintable()):
        raise argparse.ArgumentTypeError("must be printable ASCII")
    return value


def _key_from_environment() -> str | None:
    return os.environ.get("OPENAI_API_KEY", "").strip() or None


def _json_object(value: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"no JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise argparse.ArgumentTypeError("must be a JSON object, like '{\"top_p\": 0.9}'")
    return cast(dict[str, Any], parsed)


def _metric_names(value: str) -> list[str]:
    names = value.split(",")
    for name in names:
        if name not in METRICS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {','.join(METRICS)}")
    return names


def _percentiles(value: str) -> list[float]:
    try:
        numbers = [float(part) for part in value.split(",")]
    except ValueError:
        numbers = [math.nan]
    if not all(0 <= number <= 100 for number in numbers):
        raise argparse.ArgumentTypeError(f"{value!r} must be numbers from 0 to 100, like 50,90,99")
    return numbers
