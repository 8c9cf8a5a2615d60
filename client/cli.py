"""The command line: flags named as in `vllm bench serve`, checked before anything is sent."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from client import flags, values
from client.options import LoadFlags, Options, ReportFlags, RequestFlags, ServerFlags
from client.plugins import load_all

PROG = "scissorserve-bench"
EXAMPLES = """examples:
  %(prog)s --max-concurrency 8 --input-len 512 --output-len 64
  %(prog)s --backend openai-chat --request-rate 2 --dataset-name text --dataset-path book.txt --save-result
  %(prog)s --sweep concurrency --num-prompts 32 --result-html sweep.html
  %(prog)s --dataset-name facts --target 'full={"kv_policy": "full"}' --target 'tight={"kv_budget": 0.2}'

exit status: 0 if every request succeeded, 1 if one failed or the run could not start, 2 after a wrong option,
130 after Ctrl-C or SIGTERM, with a report of what was measured
"""

Plugins = Mapping[str, type[Any]]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (--help lists all options)\n")


def parse_options(argv: Sequence[str] | None = None) -> Options:
    """Reads the command line. A mistake in it ends the program with status 2 and one line."""
    datasets, arrivals = load_all("client.datasets", "DATASET"), load_all("client.arrivals", "ARRIVAL")
    parser = _build_parser(datasets, arrivals)
    given = vars(parser.parse_args(argv))
    server, requests = flags.read(ServerFlags, given), flags.read(RequestFlags, given)
    load, report = flags.read(LoadFlags, given), flags.read(ReportFlags, given)
    dataset = _choose(parser, "--dataset-name", datasets, requests.dataset_name)
    arrival_name = load.arrival or _implied_arrival(given)
    arrival = _choose(parser, "--arrival", arrivals, arrival_name)
    _refuse_unread(parser, given, "--dataset-name", datasets, dataset)
    if load.sweep is None:
        _refuse_unread(parser, given, "--arrival", arrivals, arrival)
        if arrival_name == "concurrency" and load.max_concurrency is None:
            parser.error("--arrival concurrency needs --max-concurrency N")
    _check_server(parser, server)
    return Options(
        server=server,
        requests=requests,
        load=load,
        report=report,
        dataset=flags.read(dataset, given),
        arrival=flags.read(arrival, given),
        arrival_name=arrival_name,
        flags=given,
    )


def _build_parser(datasets: Plugins, arrivals: Plugins) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROG,
        usage="%(prog)s [options]",
        description="Stream against any OpenAI-compatible server and report latency and throughput.",
        epilog=EXAMPLES,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=32, width=110),
        allow_abbrev=False,
    )
    lists = {"datasets": ", ".join(datasets), "arrivals": ", ".join(arrivals)}
    known: set[str] = set()
    for title, owner in (("server", ServerFlags), ("requests", RequestFlags), ("load", LoadFlags)):
        flags.add(parser.add_argument_group(title), [owner], known, lists)
    flags.add(parser.add_argument_group("arrivals"), arrivals.values(), known)
    flags.add(parser.add_argument_group("datasets"), datasets.values(), known)
    flags.add(parser.add_argument_group("report"), [ReportFlags], known)
    return parser


def _choose(parser: argparse.ArgumentParser, name: str, plugins: Plugins, wanted: str) -> type[Any]:
    found = plugins.get(wanted.replace("_", "-"))
    if found is None:
        parser.error(f"{name}: {wanted!r} is none of {', '.join(plugins)}")
    return found


def _implied_arrival(given: Mapping[str, Any]) -> str:
    """The arrival that the flags of `vllm bench serve` mean, which has no flag for it."""
    if given.keys() & {"ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps"}:
        return "ramp"
    if math.isfinite(given.get("request_rate", math.inf)):
        return "gamma"
    if given.get("dataset_name") == "trace":
        return "trace"
    return "concurrency" if "max_concurrency" in given else "burst"


def _refuse_unread(
    parser: argparse.ArgumentParser, given: Mapping[str, Any], name: str, plugins: Plugins, chosen: type[Any]
) -> None:
    """A flag that only other choices read is a mistake."""
    names = {key: flag for plugin in plugins.values() for key, flag in flags.names_of(plugin).items()}
    for key in given.keys() & (names.keys() - flags.names_of(chosen).keys()):
        if given[key] != math.inf:  # the rate that is no rate
            readers = [option for option, plugin in plugins.items() if key in flags.names_of(plugin)]
            parser.error(f"{names[key]} is only read with {name} {', '.join(readers)}")


def _check_server(parser: argparse.ArgumentParser, server: ServerFlags) -> None:
    if server.url and (server.host or server.port):
        parser.error("--host and --port say what --base-url says: leave either out")
    names = [target.name for target in server.target]
    if len(set(names)) < len(names):
        parser.error("each --target needs a NAME of its own")
    try:
        values.header_value(server.headers.get("Authorization", ""))
    except argparse.ArgumentTypeError as error:
        parser.error(f"$OPENAI_API_KEY {error}")
