"""One benchmark from flags to exit status: the place where the parts are put together."""

from __future__ import annotations

import json
import math
import secrets
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tqdm import tqdm

from client.arrival import due_times
from client.cli import Options
from client.dataset import Draw, Lengths, Prompt, load_tokenizer, make_prompts, random_ids, random_words, text_slices
from client.errors import BenchError
from client.metrics import summarise
from client.pool import ConnectionPool
from client.probe import first_model, wait_until_ready
from client.record import RequestRecord
from client.report import render_table, result_json
from client.request import Call, Clock, stream_request
from client.runner import Outcome, run_load
from client.timeline import TokenCounter
from client.wire import BodyTemplate

EXIT_OK, EXIT_NOTHING_SUCCEEDED, EXIT_INTERRUPTED = 0, 1, 130


async def bench(options: Options) -> int:
    """Runs what the flags ask for, prints the report, saves it if asked. Raises BenchError before the first request."""
    tokenizer = load_tokenizer(options.tokenizer) if options.tokenizer else None
    prompts = _prompts(options, tokenizer)
    folder = _result_folder(options)
    async with ConnectionPool(options.headers) as pool:
        listing = await wait_until_ready(pool, options.url("/v1/models"), options.ready_check_timeout_sec)
        model = options.model or first_model(listing)
        calls = _calls(options, model, prompts)
        warm_up, calls = calls[: options.num_warmups], calls[options.num_warmups :]
        if warm_up and (await _run(options, pool, warm_up, title="warming up", open_loop=False)).interrupted:
            return EXIT_INTERRUPTED
        date = datetime.now().astimezone()
        outcome = await _run(options, pool, calls, title="requests", open_loop=_is_open_loop(options))
    summary = summarise(
        outcome,
        planned=len(calls),
        metrics=options.percentile_metrics,
        percentiles=options.metric_percentiles,
        count_tokens=_counter(tokenizer),
    )
    print(render_table(summary, {"Server": options.url(), "Model": model, "Load": _describe_load(options)}))
    if folder is not None:
        facts = _facts(options, model, date)
        _save(folder / _file_name(options, model, date), result_json(summary, facts, detailed=options.save_detailed))
    if outcome.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_OK if summary.completed else EXIT_NOTHING_SUCCEEDED


def _prompts(options: Options, tokenizer: Tokenizer | None) -> list[Prompt]:
    """The prompts of the warm-up and of the run, all different: a prefix cache must not know them."""
    lengths = Lengths(options.random_input_len, options.random_output_len, options.random_range_ratio)
    as_ids = options.backend == "openai"
    draw: Draw
    if options.dataset_path is not None:
        draw = text_slices(options.dataset_path, lengths, tokenizer, as_ids=as_ids)
    else:
        draw = random_ids(options.random_vocab_size) if as_ids else random_words(tokenizer)
    return make_prompts(options.num_warmups + options.num_prompts, lengths, draw, options.seed)


def _calls(options: Options, model: str, prompts: Sequence[Prompt]) -> list[Call]:
    """Requests with ids that no other run has."""
    template = BodyTemplate(options.backend, model, options.temperature, options.ignore_eos, options.extra_body)
    run = f"bench-{secrets.token_hex(8)}"
    return [Call(f"{run}-{i}", template.render(prompt), prompt.input_len) for i, prompt in enumerate(prompts)]


def _is_open_loop(options: Options) -> bool:
    """With a concurrency and no rate, a request is due when a place is free; else the plan says when."""
    return options.max_concurrency is None or math.isfinite(options.request_rate)


async def _run(
    options: Options, pool: ConnectionPool, calls: Sequence[Call], *, title: str, open_loop: bool
) -> Outcome:
    async def send(call: Call, due: float, clock: Clock) -> RequestRecord:
        timeout_s = options.request_timeout_sec
        return await stream_request(pool, options.url(), call, due=due, clock=clock, timeout_s=timeout_s)

    failed = 0

    def advance(record: RequestRecord) -> None:
        nonlocal failed
        if record.failure:
            failed += 1
            bar.set_postfix(failed=failed, refresh=False)
        bar.update()

    plan = due_times(len(calls), options.request_rate, options.burstiness, options.seed) if open_loop else None
    # tqdm takes None for "off unless a terminal".
    with tqdm(total=len(calls), desc=title, unit="req", disable=options.disable_tqdm or None) as bar:
        limit = options.max_concurrency
        return await run_load(calls, send, due_times=plan, max_concurrency=limit, on_done=advance)


def _counter(tokenizer: Tokenizer | None) -> TokenCounter | None:
    if tokenizer is None:
        return None
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def _describe_load(options: Options) -> str:
    if math.isfinite(options.request_rate):
        arrivals = "Poisson" if options.burstiness == 1 else f"burstiness {options.burstiness:g}"
        pace = f"{options.request_rate:g} per second ({arrivals})"
    else:
        pace = "all at once" if options.max_concurrency is None else ""
    limit = f"{options.max_concurrency} at a time" if options.max_concurrency else ""
    lengths = f"{options.random_input_len} tokens in, {options.random_output_len} out"
    return ", ".join(part for part in (f"{options.num_prompts} requests", pace, limit, lengths) if part)


def _facts(options: Options, model: str, date: datetime) -> dict[str, Any]:
    return {
        "date": date.strftime("%Y%m%d-%H%M%S"),
        "backend": options.backend,
        "label": None,
        "model_id": model,
        "tokenizer_id": str(options.tokenizer) if options.tokenizer else None,
        "url": options.url(),
        "dataset_name": options.dataset_name,
        "random_input_len": options.random_input_len,
        "random_output_len": options.random_output_len,
        "random_range_ratio": options.random_range_ratio,
        "seed": options.seed,
        "num_prompts": options.num_prompts,
        "request_rate": options.request_rate if math.isfinite(options.request_rate) else "inf",
        "burstiness": options.burstiness,
        "max_concurrency": options.max_concurrency,
    }


def _result_folder(options: Options) -> Path | None:
    """Where the result goes, None if nothing is to be saved."""
    named = options.result_dir is not None or options.result_filename is not None
    if not (options.save_result or options.save_detailed or named):
        return None
    folder = options.result_dir or Path()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchError(f"--result-dir: cannot create {folder}: {error.strerror}") from error
    return folder


def _file_name(options: Options, model: str, date: datetime) -> str:
    if options.result_filename is not None:
        return options.result_filename
    limit = f"-concurrency{options.max_concurrency}" if options.max_concurrency else ""
    base = model.rstrip("/").rsplit("/", 1)[-1]
    return f"{options.backend}-{options.request_rate:g}qps{limit}-{base}-{date:%Y%m%d-%H%M%S}.json"


def _save(path: Path, result: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise BenchError(
            f"cannot write {path}: {error.strerror}; take another --result-dir or --result-filename"
        ) from error
    print(f"Result: {path}", file=sys.stderr)
