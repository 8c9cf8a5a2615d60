"""What a run is told: the flags that are there whatever the dataset and the arrivals."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from client import values
from client.flags import flag
from client.goodput import OBJECTIVES
from client.material import Material
from client.metrics import METRICS
from client.prompts import Session
from client.targets import Target, TargetFlag, parse_target
from client.wire import DEFAULT_ENDPOINTS, Backend

Sweep = Literal["concurrency", "rate"]

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)
"""Flags that go into the body as they are."""


class Dataset(Protocol):
    """Where prompts come from. Its class is a frozen dataclass of flags."""

    def sessions(self, count: int, material: Material) -> list[Session]:
        """`count` sessions, all different where the source allows. Raises BenchError if there are none."""


class Arrival(Protocol):
    """When sessions begin. Its class is a frozen dataclass of flags."""

    def due_times(self, sessions: Sequence[Session], rng: np.random.Generator, /) -> list[float] | None:
        """Ascending seconds from the start; None: when there is a place. Raises BenchError if a flag is missing."""

    def describe(self) -> str:
        """In a few words, for the report; empty if there is nothing to say."""


@dataclass(frozen=True, kw_only=True)
class ServerFlags:
    """Whom to ask."""

    url: str | None = flag(
        "--base-url", parse=values.base_url, metavar="URL", help="the server; default: http://127.0.0.1:8000"
    )
    host: str | None = flag("--host", parse=values.host, metavar="NAME", help="the server's host, without --base-url")
    port: int | None = flag("--port", parse=values.port, metavar="N", help="the server's port, without --base-url")
    target: tuple[TargetFlag, ...] = flag(
        "--target",
        parse=parse_target,
        action="append",
        default=(),
        metavar="NAME=URL",
        help='compare servers, or ways to ask one, in turns: NAME=URL, NAME=\'{"body": "fields"}\' or both',
    )
    endpoint: str | None = flag(
        "--endpoint", metavar="PATH", help="default: /v1/completions, for openai-chat /v1/chat/completions"
    )
    backend: Backend = flag("--backend", choices=list(DEFAULT_ENDPOINTS), default="openai", help="completions or chat")
    model: str | None = flag("--model", metavar="NAME", help="default: the first that the server lists")
    served_model_name: str | None = flag(
        "--served-model-name", metavar="NAME", help="what the server calls the model, if that is not --model"
    )
    api_key: str | None = flag("--api-key", parse=values.header_value, metavar="KEY", help="default: $OPENAI_API_KEY")
    header: tuple[tuple[str, str], ...] = flag(
        "--header",
        parse=values.header,
        nargs="+",
        action="extend",
        default=(),
        metavar="NAME=VALUE",
        help="further headers",
    )
    ready_check_timeout_sec: float = flag(
        "--ready-check-timeout-sec",
        parse=values.real(0),
        default=0.0,
        metavar="S",
        shown="0",
        help="wait this long for a server that is starting",
    )
    request_timeout_sec: float = flag(
        "--request-timeout-sec",
        parse=values.real(0, inclusive=False),
        default=21600.0,
        metavar="S",
        help="a request that takes longer has failed",
    )
    cold_connections: bool = flag(
        "--cold-connections", action="store_true", default=False, help="a new connection for every request"
    )
    insecure: bool = flag(
        "--insecure", action="store_true", default=False, help="take any certificate of a server that speaks TLS"
    )

    @property
    def base_url(self) -> str:
        """Of the server, unless a target has its own."""
        return self.url or f"http://{self.host or '127.0.0.1'}:{self.port or 8000}"

    @property
    def headers(self) -> dict[str, str]:
        """Sent with every request."""
        key = self.api_key or os.environ.get("OPENAI_API_KEY", "").strip()
        return ({"Authorization": f"Bearer {key}"} if key else {}) | dict(self.header)

    @property
    def targets(self) -> list[Target]:
        """All that are to be measured, at least one."""
        return [one.resolve(self.base_url) for one in self.target] or [Target("", self.base_url)]

    @property
    def path(self) -> str:
        """Of the endpoint under test."""
        return self.endpoint or DEFAULT_ENDPOINTS[self.backend]


@dataclass(frozen=True, kw_only=True)
class RequestFlags:
    """What to ask."""

    dataset_name: str = flag(
        "--dataset-name", default="random", metavar="NAME", help="where prompts come from: {datasets}"
    )
    num_prompts: int = flag(
        "--num-prompts", parse=values.whole(1), default=100, metavar="N", help="requests to send, or conversations"
    )
    num_warmups: int = flag(
        "--num-warmups",
        parse=values.whole(0),
        default=0,
        metavar="N",
        shown="0",
        help="requests to send before these, uncounted",
    )
    tokenizer: Path | None = flag(
        "--tokenizer", parse=Path, metavar="PATH", help="tokenizer.json or its folder: makes lengths of text exact"
    )
    seed: int = flag("--seed", parse=values.whole(0), default=0, metavar="N", shown="0", help="of prompts and arrivals")
    request_id_prefix: str = flag(
        "--request-id-prefix",
        parse=values.header_value,
        default="bench-",
        metavar="TEXT",
        help="request ids begin so; what follows is new in every run",
    )
    temperature: float | None = flag("--temperature", parse=values.real(0), metavar="T", help="default: the server's")
    top_p: float | None = flag("--top-p", parse=values.real(0), metavar="P", help="default: the server's")
    top_k: int | None = flag("--top-k", parse=values.whole(-1), metavar="K", help="default: the server's")
    min_p: float | None = flag("--min-p", parse=values.real(0), metavar="P", help="default: the server's")
    frequency_penalty: float | None = flag(
        "--frequency-penalty", parse=values.real(-2), metavar="X", help="default: the server's"
    )
    presence_penalty: float | None = flag(
        "--presence-penalty", parse=values.real(-2), metavar="X", help="default: the server's"
    )
    repetition_penalty: float | None = flag(
        "--repetition-penalty", parse=values.real(0, inclusive=False), metavar="X", help="default: the server's"
    )
    logprobs: int | None = flag(
        "--logprobs", parse=values.whole(0), metavar="N", help="ask for this many alternatives of each token"
    )
    ignore_eos: bool = flag(
        "--ignore-eos",
        action="store_true",
        default=False,
        help="generate the full length, where the server knows ignore_eos",
    )
    extra_body: dict[str, Any] = flag(
        "--extra-body",
        parse=values.json_object,
        default={},
        metavar="JSON",
        help="fields to merge into every request body",
    )

    @property
    def sampling(self) -> dict[str, float]:
        """The fields of the body that say how tokens are drawn, of those that were given."""
        return {name: value for name in SAMPLING if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, kw_only=True)
class LoadFlags:
    """How much to ask."""

    arrival: str | None = flag(
        "--arrival", metavar="NAME", help="when requests are sent: {arrivals}; default: what the other flags imply"
    )
    max_concurrency: int | None = flag(
        "--max-concurrency", parse=values.whole(1), metavar="N", help="requests in flight at most; default: no limit"
    )
    time_limit: float | None = flag(
        "--time-limit",
        parse=values.real(0, inclusive=False),
        metavar="S",
        help="send nothing after this many seconds; what is in flight may end",
    )
    sweep: Sweep | None = flag(
        "--sweep",
        choices=["concurrency", "rate"],
        help="repeat with more and more load, until the server gives no more",
    )
    sweep_start: float = flag(
        "--sweep-start",
        parse=values.real(0, inclusive=False),
        default=1.0,
        metavar="X",
        shown="1",
        help="the first load, requests at a time or per second",
    )
    sweep_factor: float = flag(
        "--sweep-factor",
        parse=values.real(1, inclusive=False),
        default=2.0,
        metavar="F",
        shown="2",
        help="from one load to the next",
    )
    sweep_steps: int = flag("--sweep-steps", parse=values.whole(1), default=10, metavar="N", help="loads at most")
    rounds: int = flag(
        "--rounds", parse=values.whole(1), default=3, metavar="N", help="turns that each of several targets gets"
    )


@dataclass(frozen=True, kw_only=True)
class ReportFlags:
    """What to show and to keep."""

    percentile_metrics: tuple[str, ...] = flag(
        "--percentile-metrics",
        parse=values.some_of(METRICS),
        default=("ttft", "tpot", "itl", "e2el"),
        shown="ttft,tpot,itl,e2el",
        metavar="A,B",
        help=f"of {','.join(METRICS)}",
    )
    metric_percentiles: tuple[float, ...] = flag(
        "--metric-percentiles",
        parse=values.percentiles,
        default=(99.0,),
        shown="99",
        metavar="P,Q",
        help="of each of these",
    )
    goodput: tuple[tuple[str, float], ...] = flag(
        "--goodput",
        parse=values.objective(OBJECTIVES),
        nargs="+",
        action="extend",
        default=(),
        metavar="METRIC:MS",
        help="count the requests that keep to ttft, tpot and e2el in milliseconds, as in ttft:200 tpot:50",
    )
    metrics_interval: float = flag(
        "--metrics-interval",
        parse=values.real(0),
        default=1.0,
        metavar="S",
        shown="1",
        help="read the server's /metrics this often; 0: never",
    )
    disable_tqdm: bool = flag(
        "--disable-tqdm", action="store_true", default=False, help="no progress bar (there is none without a terminal)"
    )
    save_result: bool = flag("--save-result", action="store_true", default=False, help="write the result as JSON")
    save_detailed: bool = flag(
        "--save-detailed", action="store_true", default=False, help="the same, with latencies and text of every request"
    )
    append_result: bool = flag(
        "--append-result",
        action="store_true",
        default=False,
        help="add the result to the file as one more line; implies --save-result",
    )
    plot_timeline: bool = flag(
        "--plot-timeline",
        action="store_true",
        default=False,
        help="write the page with plots beside the result, as NAME.timeline.html; implies --save-result",
    )
    result_dir: Path | None = flag(
        "--result-dir", parse=Path, metavar="DIR", help="default: the current folder; implies --save-result"
    )
    result_filename: str | None = flag(
        "--result-filename", metavar="NAME", help="default: made from load, model and time; implies --save-result"
    )
    result_csv: str | None = flag("--result-csv", metavar="NAME", help="write a line for every request")
    result_html: str | None = flag(
        "--result-html", metavar="NAME", help="write a page with plots, which needs no network"
    )
    label: str | None = flag("--label", metavar="TEXT", help="a name for the result")
    metadata: tuple[tuple[str, str], ...] = flag(
        "--metadata",
        parse=values.pair,
        nargs="+",
        action="extend",
        default=(),
        metavar="KEY=VALUE",
        help="facts to keep in the result",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All flags, parsed and checked."""

    server: ServerFlags
    requests: RequestFlags
    load: LoadFlags
    report: ReportFlags
    dataset: Dataset
    arrival: Arrival
    arrival_name: str
    flags: dict[str, Any]
    """What was given on the command line, by the name of the field."""
