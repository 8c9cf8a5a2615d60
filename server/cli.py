"""The command line of the server: flags, `SCISSORSERVE_*` variables and a `--config` file, in that order of force."""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from paged_kv.plugins import names
from server.engine_options import EngineOptions, parse_budget, parse_pool, parse_size
from server.parser import OneLineParser, number

_ENVIRONMENT = "SCISSORSERVE_"


def build_parser() -> OneLineParser:
    """The parser of all flags; defaults that depend on model, machine or policy are None."""
    parser = OneLineParser(
        prog="scissorserve",
        description="Serve a language model behind OpenAI's API, keeping in KV memory the tokens that matter.",
        epilog="Every flag can also stand in the --config file, or in a variable (--kv-budget is "
        "SCISSORSERVE_KV_BUDGET). A flag beats a variable, a variable beats the file. `scissorserve calibrate` "
        "measures a model once, so that the server knows better which of its rows matter: see its own --help.",
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="folder, .gguf file or hub id (default: SmolLM2)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML or TOML file with flags as keys")
    parser.add_argument("--check", action="store_true", help="print configuration and memory plan, and exit")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    _add_http_flags(parser.add_argument_group("HTTP"))
    _add_engine_flags(parser.add_argument_group("engine"))
    _add_kv_flags(parser.add_argument_group("KV memory"))
    return parser


def _add_http_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--host", default="127.0.0.1", help="address to bind (%(default)s)")
    add("--port", type=number(0, 65535), default=8000, help="port to bind (%(default)s)")
    add("--served-model-name", nargs="+", metavar="NAME", help="names clients may ask for (default: from MODEL)")
    add("--api-key", nargs="+", default=[], metavar="KEY", help="keys, one of which clients must send")
    add("--api-key-file", type=Path, metavar="FILE", help="file with more of them, one a line")
    add("--chat-template", type=Path, metavar="FILE", help="Jinja template in place of the model's own")
    add(
        "--generation-config",
        type=lambda text: "none" if text == "vllm" else text,
        choices=["auto", "none"],
        default="auto",
        help="auto: draw as the model's generation_config.json recommends, where a request does not say (%(default)s)",
    )
    add("--response-role", default="assistant", help="role of answers (%(default)s)")
    add("--enable-auto-tool-choice", action="store_true", help="let models choose to call tools")
    parsers = names("server.tools.parsers")
    add("--tool-call-parser", type=_hyphenated, choices=parsers, help="how the model writes calls of tools")
    add("--seed", type=number(0), metavar="N", help="repeat the seeds of requests without one from start to start")
    add("--shutdown-timeout", type=float, default=30.0, metavar="SECONDS", help="for running requests (%(default)s)")
    add(
        "--timeout-keep-alive",
        type=number(1),
        default=75,
        metavar="SECONDS",
        help="for idle connections (%(default)s)",
    )
    add(
        "--sse-keep-alive-interval",
        type=number(1),
        default=15,
        metavar="SECONDS",
        help="of silence in a stream, then a comment (%(default)s)",
    )
    add(
        "--stream-stall-timeout",
        type=number(1),
        default=120,
        metavar="SECONDS",
        help="for readers who take nothing (%(default)s)",
    )
    levels = ["critical", "error", "warning", "info", "debug"]
    add("--uvicorn-log-level", default="info", choices=levels, help="(%(default)s)")
    add("--log-format", default="text", choices=["text", "json"], help="of the log, on stderr (%(default)s)")
    add("--otlp-traces-endpoint", metavar="URL", help="send traces there, such as http://host:4318/v1/traces")


def _add_engine_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--dtype", choices=["auto", "float32", "bfloat16"], default="auto", help="of weights (%(default)s = float32)")
    add(
        "--quantization",
        choices=["auto", "none", "int8"],
        default="auto",
        help="of weights and activations (%(default)s = int8 where the C++ kernels are built)",
    )
    add("--max-model-len", type=number(1), metavar="TOKENS", help="context length (default: the model's)")
    add("--max-num-seqs", type=number(1), default=64, metavar="N", help="sequences that run at once (%(default)s)")
    add("--max-num-batched-tokens", type=number(2), default=512, metavar="N", help="tokens per step (%(default)s)")
    add("--max-num-queued-reqs", type=number(1), default=1024, metavar="N", help="more get a 503 (%(default)s)")
    add("--scheduling-policy", choices=["fcfs", "priority"], default="fcfs", help="(%(default)s)")
    backends = ["auto", *names("paged_kv.attention")]
    add("--attention-backend", choices=backends, default="auto", help="(%(default)s: the fastest that runs here)")
    add("--profile", action="store_true", help="tell where the time of steps went when the server stops")
    add("--cache-dir", type=Path, metavar="DIR", help="for converted models (~/.cache/scissorserve)")


def _add_kv_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--kv-cache-memory-bytes",
        type=_checked(parse_size),
        metavar="SIZE",
        help="such as 512MiB (default: a quarter of the free memory, at most 4GiB)",
    )
    add("--block-size", "--page-size", type=number(1, 256), default=16, metavar="ROWS", help="per page (%(default)s)")
    formats = ["auto", *names("paged_kv.formats")]
    add("--kv-cache-dtype", choices=formats, default="auto", help="of rows (%(default)s: int8, or as --dtype)")
    policies = ["auto", *names("paged_kv.policies")]
    add(
        "--kv-policy",
        choices=policies,
        default="auto",
        help="which rows are worth keeping (%(default)s: calibrated if the model is, else scissorhands)",
    )
    add("--kv-calibration", type=Path, metavar="FILE", help="of the model (default: where `calibrate` puts it)")
    add(
        "--kv-budget",
        type=_checked(parse_budget),
        default=0.2,
        metavar="B",
        help="0.2: share of a sequence's rows to keep; 512: rows per lane (%(default)s)",
    )
    add(
        "--kv-evict",
        choices=["pressure", "always"],
        default="pressure",
        help="only when memory runs short, or every sequence from the end of its prompt on (%(default)s)",
    )
    add("--kv-sinks", type=number(0), metavar="ROWS", help="first rows of a lane, never evicted (by policy)")
    add("--kv-window", type=number(1), metavar="ROWS", help="last rows of a lane, never evicted (by policy)")
    add("--kv-lanes", choices=["uniform", "layer", "global", "profile"], help="lanes that compete (by policy)")
    add(
        "--kv-pool",
        type=_checked(parse_pool),
        metavar="ROWS",
        help="odd: a row gets the highest score of so many around it (by policy)",
    )
    add(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="read the beginnings of prompts once; off for policies that note attention (%(default)s)",
    )
    add("--debug-pages", action="store_true", help="fill freed pages with NaN, to find stray reads; slow")


def parse(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> argparse.Namespace:
    """All options with every source applied. A mistake ends the process with one line that says what to change."""
    parser = build_parser()
    options = parser.parse_all(arguments)
    variables = _from_environment(os.environ if environment is None else environment)
    layers = [_as_arguments(parser, variables, "environment")]
    if options.config is not None:
        layers.insert(0, _as_arguments(parser, _read_file(parser, options.config), str(options.config)))
    merged = argparse.Namespace()
    for layer in [*layers, list(arguments)]:
        model = getattr(merged, "model", None)
        merged = parser.parse_all(layer, merged)
        merged.model = merged.model or model  # an absent positional would reset it
    return merged


def own_version() -> str:
    """The version of the installed distribution; "0" in a tree that is not installed."""
    try:
        return version("scissorserve")
    except PackageNotFoundError:
        return "0"


def engine_options(parsed: argparse.Namespace) -> EngineOptions:
    """The engine's share of the options."""
    return EngineOptions(
        model=parsed.model,
        cache_dir=parsed.cache_dir,
        chat_template=parsed.chat_template,
        generation_config=parsed.generation_config,
        dtype=parsed.dtype,
        quantization=parsed.quantization,
        max_model_len=parsed.max_model_len,
        max_num_seqs=parsed.max_num_seqs,
        max_num_batched_tokens=parsed.max_num_batched_tokens,
        max_num_queued_reqs=parsed.max_num_queued_reqs,
        scheduling_policy=parsed.scheduling_policy,
        page_size=parsed.block_size,
        kv_cache_memory_bytes=parsed.kv_cache_memory_bytes,
        kv_cache_dtype=parsed.kv_cache_dtype,
        kv_policy=parsed.kv_policy,
        kv_budget=parsed.kv_budget,
        kv_evict=parsed.kv_evict,
        kv_sinks=parsed.kv_sinks,
        kv_window=parsed.kv_window,
        kv_lanes=parsed.kv_lanes,
        kv_pool=parsed.kv_pool,
        kv_calibration=parsed.kv_calibration,
        attention_backend=parsed.attention_backend,
        enable_prefix_caching=parsed.enable_prefix_caching,
        debug_pages=parsed.debug_pages,
    )


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix(_ENVIRONMENT).lower(): value
        for name, value in environment.items()
        if name.startswith(_ENVIRONMENT) and name != f"{_ENVIRONMENT}CACHE" and value
    }


def _read_file(parser: OneLineParser, path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        parser.error(f"--config {path} cannot be read: {' '.join(str(error).split())}")
    if not isinstance(content, dict):
        parser.error(f"--config {path} must hold keys and values, such as 'port: 8000'")
    return content


def _as_arguments(parser: OneLineParser, values: Mapping[str, Any], source: str) -> list[str]:
    """Keys and values of a file or the environment as the arguments they stand for, MODEL first."""
    flags = {option for action in parser._actions for option in action.option_strings}
    arguments: list[str] = []
    for key, value in values.items():
        flag = "--" + str(key).replace("_", "-")
        if flag == "--model":
            arguments.insert(0, str(value))
        elif flag not in flags or flag in ("--config", "--help"):
            parser.error(
                f"{source} sets {key!r}, which is no option{parser.resembling(flag) or '; see --help for all'}"
            )
        elif isinstance(value, list):
            arguments += [flag, *map(str, value)]
        elif value is True:
            arguments.append(flag)
        elif value is not False:
            arguments += [flag, str(value)]
        elif (negated := flag.replace("--", "--no-", 1)) in flags:
            arguments.append(negated)
    return arguments


def _hyphenated(text: str) -> str:
    """vLLM writes some names with underscores."""
    return text.replace("_", "-")


def _checked(parse_text: Callable[[str], Any]) -> Callable[[str], Any]:
    """`parse_text` with its ValueError's sentence shown to the user, which argparse would hide."""

    def parse_or_explain(text: str) -> Any:
        try:
            return parse_text(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse_or_explain
