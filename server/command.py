"""From parsed options to a server that answers; loads torch, so the command line is checked before it."""

from __future__ import annotations

import ipaddress
import logging
import logging.config
import os
import sys
import time
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from models.errors import ModelError
from models.source import model_display_name
from scheduler.engine import compute_thread
from scheduler.stats import Observers
from server.app import create_app
from server.check import report
from server.cli import engine_options, own_version
from server.file_limit import raise_file_limit
from server.launch import Assembly, assemble
from server.launch_error import LaunchError
from server.logs import log_config
from server.metrics import Metrics
from server.observer import Tracer
from server.profile import StepProfile
from server.settings import Pace, ServerSettings
from server.uvicorn_server import make_server

logger = logging.getLogger("scissorserve")


def run(options: Namespace) -> int:
    """Load, then serve until told to stop; returns the process's exit status."""
    logging.config.dictConfig(log_config(options.uvicorn_log_level, options.log_format))
    logging.captureWarnings(options.log_format == "json")
    try:
        settings = _settings(options)
        tracer = tracer_for(options, settings)
        executor = compute_thread()
        assembly = executor.submit(assemble, engine_options(options)).result()
        if options.check:
            return check(options, settings, assembly)
    except (LaunchError, ModelError, ValueError) as error:
        print(f"scissorserve: error: {error}", file=sys.stderr)
        return 2
    return serve(options, settings, assembly, executor, tracer)


def check(options: Namespace, settings: ServerSettings, assembly: Assembly) -> int:
    """Print what would be served; returns the exit status. Raises LaunchError if it would not work for long."""
    if problem := assembly.plan.problem():
        raise LaunchError(problem)
    print(report(options, settings, assembly), end="")
    return 0


def serve(
    options: Namespace,
    settings: ServerSettings,
    assembly: Assembly,
    executor: ThreadPoolExecutor,
    tracer: Tracer | None = None,
) -> int:
    """Answer requests until a signal ends it; returns the exit status.

    `executor` is the thread that assembled the parts. A step of it that never ends ends the process right here.
    """
    settings = replace(settings, sampling=assembly.sampling)
    config = assembly.scheduler.config
    cache = {"block_size": str(config.page_size), "num_gpu_blocks": str(config.num_pages - 1)}
    metrics = Metrics(settings.model_names[0], config.max_model_len, cache)
    profile = StepProfile()
    observer = Observers(metrics, profile) if options.profile else metrics
    app = create_app(assembly.engine(observer, executor), assembly.tokenizer, settings, metrics, tracer)
    for line in assembly.summary:
        logger.info(line)
    logger.info("Serving %s at http://%s:%d/v1", settings.model_names[0], options.host, options.port)
    if not settings.api_keys and not is_loopback(options.host):
        logger.warning("anyone who reaches %s can use this server: set --api-key, or bind to 127.0.0.1", options.host)
    if problem := assembly.plan.problem():
        logger.warning(problem)
    raise_file_limit()
    server = make_server(app, host=options.host, port=options.port, log_level=options.uvicorn_log_level)
    server.run()
    if tracer is not None:
        tracer.close()
    for line in profile.report():
        logger.info(line)
    if app.state.services.lifecycle.is_stuck:
        logging.shutdown()
        os._exit(server.exit_status)  # Python itself would wait for the thread
    return server.exit_status


def is_loopback(host: str) -> bool:
    """Whether `host`, a name or an address, is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def keys_in(file: Path | None) -> list[str]:
    """The API keys in `file`, one a line; empty lines and those that begin with # are none. Raises LaunchError."""
    if file is None:
        return []
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise LaunchError(f"--api-key-file {file} cannot be read: {error}") from error
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise LaunchError(f"--api-key-file {file} holds no key; write one a line")
    return keys


def tracer_for(options: Namespace, settings: ServerSettings) -> Tracer | None:
    """What makes traces, if they are asked for. Raises LaunchError, ValueError."""
    if options.otlp_traces_endpoint is None:
        return None
    try:
        from server.tracing import Tracing
    except ImportError as error:
        raise LaunchError("--otlp-traces-endpoint needs OpenTelemetry: pip install 'scissorserve[otel]'") from error
    return Tracing(options.otlp_traces_endpoint, settings.model_names[0], settings.version)


def _settings(options: Namespace) -> ServerSettings:
    return ServerSettings(
        model_names=tuple(options.served_model_name or [model_display_name(options.model)]),
        version=own_version(),
        created=int(time.time()),
        api_keys=(*options.api_key, *keys_in(options.api_key_file)),
        response_role=options.response_role,
        shutdown_timeout=options.shutdown_timeout,
        keep_alive=options.timeout_keep_alive,
        seed=options.seed,
        pace=Pace(options.sse_keep_alive_interval, options.stream_stall_timeout),
        enable_auto_tool_choice=options.enable_auto_tool_choice,
        tool_call_parser=options.tool_call_parser,
        warm_up=True,
    )
