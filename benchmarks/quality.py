"""What eviction costs in quality: planted facts, perplexity, agreement with the full cache, and long texts.

    python -m benchmarks.quality [--policies calibrated h2o] [--shares 0.5 0.2 0.1] [--tasks facts perplexity] [--full]
    python -m benchmarks.quality --report benchmarks/results/quality.json OTHERS

Everything runs through the engine's scheduler, runner, pool and eviction, with float32 weights and `--kv-evict always`.
The texts are essays()[3::4]: calibrations are made from [0::2], the constants of policies were chosen on [1::4].

facts       A fact stands in a prompt of essays, at depths that spread over it. The prompt is compressed, then the
            question and the start of an answer follow (asked after), or the question still belongs to what is
            compressed (asked before). Found: greedy decoding gives the whole answer. Words, numbers of five digits,
            or three numbers in one prompt.
perplexity  Of the 256 tokens that follow a compressed prompt of 1,024, by that with the full cache.
agreement   Greedy answers to chats about an essay: the share of 64 tokens that equal those of the full cache up to the
            first that does not, and the share of answers that are equal as a whole.
long        1,500 tokens drawn under a budget of 512 rows per lane: the share of 4-grams that were there before, and the
            perplexity of the text under the full cache.

Policies at a share of 1 are the full cache: nothing is evicted. Ctrl-C ends early and reports what is there.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from benchmarks.quality_cases import measure
from benchmarks.quality_engine import SLOTS, Engine, Subject, Variant, alike
from benchmarks.quality_generation import agreement, long_texts
from benchmarks.quality_record import FULL, Record, read, write
from benchmarks.quality_table import report
from benchmarks.quality_texts import KINDS, Case, chats, fact_cases, stories, text_cases
from models.errors import ModelError
from models.tokenizer import Tokenizer
from paged_kv.plugins import names

SHARES = (1.0, 0.5, 0.33, 0.2, 0.1, 0.05)
TASKS = ("facts", "perplexity", "agreement", "long")
_TEXT, _CONTINUED = 1024, 256


def main() -> None:
    """Measure, or read what was measured; print the tables and draw the picture."""
    arguments = _parse()
    if arguments.report:
        records = read(arguments.report)
    else:
        try:
            records = _measure(arguments)
        except (ModelError, ValueError) as error:
            raise SystemExit(str(error)) from error
    print(report(records))
    try:
        from benchmarks.quality_plot import draw
    except ImportError:
        raise SystemExit("the picture needs matplotlib: pip install '.[bench]'") from None
    picture = arguments.results.with_suffix(".png")
    if draw(picture, records):
        print(f"\n{picture}")


def _measure(arguments: argparse.Namespace) -> list[Record]:
    subject = Subject.load(arguments.model)
    groups = list(alike(subject, _variants(arguments)))
    cases = list(_cases(subject.tokenizer(), arguments))
    records: list[Record] = []
    try:
        for rows in arguments.rows:
            for group in groups:
                records.extend(_of_group(subject, group, rows, cases, arguments))
    except KeyboardInterrupt:
        print("\nstopped early")
    write(arguments.results, records)
    return records


def _of_group(
    subject: Subject, group: Sequence[Variant], rows: str, cases: Sequence[Case], arguments: argparse.Namespace
) -> Iterator[Record]:
    tokenizer = subject.tokenizer()
    longest = max([2048, *(len(case.prompt) + 2 * _CONTINUED for case in cases)])
    engine = Engine(subject, group, rows, (SLOTS + 1) * longest)
    with tqdm(total=len(cases), desc=f"{rows} rows: {', '.join(map(str, group))}"[:60], disable=not cases) as bar:
        yield from measure(engine, cases, arguments.shares, bar.update)
    if "agreement" in arguments.tasks:
        yield from agreement(engine, chats(tokenizer, arguments.chats), arguments.shares, arguments.new_tokens)
    if "long" in arguments.tasks:
        yield from long_texts(engine, stories(tokenizer, arguments.stories), arguments.long_tokens, arguments.seed)


def _variants(arguments: argparse.Namespace) -> list[Variant]:
    policies = dict.fromkeys([FULL, *arguments.policies])
    lanes = arguments.lanes or [None]
    return [
        Variant(policy, None if policy == FULL else each)
        for policy in policies
        for each in (lanes[:1] if policy == FULL else lanes)
    ]


def _cases(tokenizer: Tokenizer, arguments: argparse.Namespace) -> Iterator[Case]:
    if "perplexity" in arguments.tasks:
        yield from text_cases(tokenizer, _TEXT, _CONTINUED, arguments.texts)
    if "facts" in arguments.tasks:
        for tokens in arguments.tokens:
            for kind in arguments.facts:
                yield from fact_cases(tokenizer, kind, tokens, arguments.depths, arguments.seed, arguments.asked)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    policies = names("paged_kv.policies")
    add = parser.add_argument
    add("--model", help="as on the server's command line (the default model)")
    add("--policies", nargs="+", choices=policies, default=policies, metavar="POLICY")
    add(
        "--lanes", nargs="+", choices=("own", "uniform", "layer", "global", "profile"), help="instead of each one's own"
    )
    add("--shares", nargs="+", type=_share, default=SHARES, help="of rows kept (%(default)s)")
    add("--tasks", nargs="+", choices=TASKS, default=("facts", "perplexity"))
    add("--rows", nargs="+", choices=("float32", "bfloat16", "int8", "int4"), default=("float32",))
    add("--facts", nargs="+", choices=KINDS, default=("numbers",), help="kinds of facts (%(default)s)")
    add("--asked", nargs="+", choices=("after", "before"), default=("after", "before"))
    add("--tokens", nargs="+", type=int, default=(1000,), help="lengths of prompts with facts (%(default)s)")
    add("--depths", type=int, default=8, help="prompts with facts, of each kind and length (%(default)s)")
    add("--texts", type=int, default=4, help="texts for perplexity (%(default)s)")
    add("--chats", type=int, default=10, help="at most 50 (%(default)s)")
    add("--new-tokens", type=int, default=64, help="of an answer to a chat (%(default)s)")
    add("--stories", type=int, default=2, help="long texts, at most 4 (%(default)s)")
    add("--long-tokens", type=int, default=1500, help="of a long text (%(default)s)")
    add("--seed", type=int, default=0)
    add("--full", action="store_true", help="all tasks, kinds and lengths, 32 depths, 8 texts, 50 chats, 4 stories")
    add("--results", type=Path, default=Path("benchmarks/results/quality.json"))
    add(
        "--report",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="measure nothing, report what these hold, of the same samples",
    )
    arguments = parser.parse_args()
    arguments.lanes = [None if lanes == "own" else lanes for lanes in arguments.lanes or ("own",)]
    if arguments.full:
        vars(arguments).update(tasks=TASKS, facts=KINDS, tokens=(1000, 4000), depths=32, texts=8, chats=50, stories=4)
    return arguments


def _share(text: str) -> float:
    share = float(text)
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no share: give numbers above 0, at most 1")
    return share


if __name__ == "__main__":
    main()
