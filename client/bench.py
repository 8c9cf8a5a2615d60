"""One benchmark from flags to exit status."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

import httpx

from client.arrivals.gamma import Gamma
from client.experiment import Experiment, Level, Run
from client.material import load_tokenizer
from client.options import Options
from client.outputs import Outputs
from client.pool import ConnectionPool
from client.probe import first_model, wait_until_ready
from client.reports.table import render_tables
from client.sweep import sweep
from client.targets import Target

EXIT_OK, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 130


async def bench(options: Options) -> int:
    """Runs what the flags ask for, prints the report, saves it if asked. Raises BenchError before the first request."""
    tokenizer = load_tokenizer(options.requests.tokenizer) if options.requests.tokenizer else None
    outputs = Outputs(options)
    targets = await _find_models(options)
    server = options.server
    async with ConnectionPool(server.headers, cold=server.cold_connections, insecure=server.insecure) as pool:
        runs = await _run(Experiment(options, pool, targets, tokenizer))
    print(render_tables(runs, options))
    outputs.save(runs)
    return _exit_status(runs)


def _exit_status(runs: Sequence[Run]) -> int:
    """A script must not take a run for good in which requests failed, or in which none was sent."""
    summaries = [run.summary for run in runs]
    if any(summary.interrupted for summary in summaries):
        return EXIT_INTERRUPTED
    return EXIT_OK if all(summary.completed and not summary.failed for summary in summaries) else EXIT_FAILED


async def _run(experiment: Experiment) -> list[Run]:
    options = experiment.options
    if options.load.sweep is None:
        return await experiment.run(Level(options.arrival, options.load.max_concurrency))
    burstiness = options.flags.get("burstiness", Gamma().burstiness)
    async with aclosing(sweep(experiment, burstiness)) as levels:
        return [run async for runs in levels for run in runs]


async def _find_models(options: Options) -> list[Target]:
    """All targets with their models, once they answer. Raises BenchError if one does not."""
    server = options.server
    targets = []
    async with httpx.AsyncClient(headers=server.headers, verify=not server.insecure) as client:
        for target in server.targets:
            listing = await wait_until_ready(client, target.url("/v1/models"), server.ready_check_timeout_sec)
            model = target.extra_body.get("model") or server.served_model_name or server.model
            model = model or first_model(listing)
            targets.append(replace(target, model=model))
    return targets
