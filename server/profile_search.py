"""The part of `scissorserve calibrate --search` that comes after measuring: evolve the lane profile, keep what wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic

from tqdm import tqdm

from csrc.library import Kernels, KernelsMissing
from models.checkpoint import Checkpoint
from models.errors import ModelError
from models.examiner import Examiner, Marks
from models.exams import make_exam
from models.lane_search import LaneSearch
from models.loader import load_model
from models.tokenizer import Tokenizer
from paged_kv.lanes import LaneProfile
from paged_kv.policy import CalibratedPolicy, Policy, load_policy

_BATCH = 3  # exams of a generation; the next one takes the next ones
_HELD_OUT = 4  # one passage in so many, from the end


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Which `policy` ranks the rows within a lane, at what `share` of rows kept, and when the search ends.

    `minutes`: at the end of the generation in which they have passed; None is never.
    """

    policy: str
    share: float
    generations: int
    minutes: float | None


def searched_policy(name: str) -> Policy:
    """The policy called `name`. Raises ModelError if it is none, or none that a profile can be searched for."""
    try:
        policy = load_policy(name)
    except ValueError as error:
        raise ModelError(f"--search-policy: {error}") from error
    if not policy.evicts or policy.defaults.streaming or isinstance(policy, CalibratedPolicy):
        raise ModelError(f"--search-policy {name} follows no lane profile; name one that can, such as scissorhands")
    return policy


def held_out(passages: Sequence[Sequence[int]]) -> int:
    """How many passages, from the end, the search may not see. Raises ModelError where too few would be left."""
    if len(passages) < 2:
        raise ModelError("--search needs at least 2 passages: some to search with, some to judge what was found")
    return max(1, len(passages) // _HELD_OUT)


def searched_profile(
    profile: LaneProfile,
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    passages: Sequence[Sequence[int]],
    options: SearchOptions,
) -> LaneProfile | None:
    """A profile that keeps more of what exams ask for than `profile` does, also on passages it was not evolved on.

    None if none was found. Ctrl-C ends the evolution early, and what it has so far is judged.
    """
    examiner = Examiner(load_model(checkpoint, quantize=_has_kernels()), searched_policy(options.policy), options.share)
    for number, passage in enumerate(tqdm(passages, "Reading with questions", unit="passage")):
        examiner.add(make_exam(tokenizer, passage, f"exam {number}"))
    judges = range(len(passages) - held_out(passages), len(passages))
    search = LaneSearch(profile, options.share, examiner.kv_heads)
    _evolve(search, examiner, profile, judges.start, options)
    before, after = (examiner.marks(judges, each) for each in (profile, search.profile))
    wins = after.loss < before.loss
    print(_verdict(before, after, examiner.marks(judges, None), len(judges), wins))
    return search.profile if wins else None


def _evolve(search: LaneSearch, examiner: Examiner, start: LaneProfile, exams: int, options: SearchOptions) -> None:
    """Lets `search` go on with the first `exams` of `examiner`, as long as `options` say, or until Ctrl-C."""
    end = None if options.minutes is None else monotonic() + 60 * options.minutes
    best = 0.0
    known: dict[int, float] = {}  # losses of the profile before
    with tqdm(total=options.generations, desc="Evolving lanes", unit="generation") as bar:
        try:
            for generation in range(options.generations):
                if end is not None and monotonic() >= end:
                    break
                batch = [(generation * _BATCH + each) % exams for each in range(min(_BATCH, exams))]
                for number in batch:
                    known[number] = known.get(number) or examiner.marks([number], start).loss
                mean = search.generation(partial(_loss, examiner, batch))
                best = min(best, mean - sum(known[number] for number in batch) / len(batch))
                bar.set_postfix_str(f"best so far {best:+.3f} nats per token")
                bar.update()
        except KeyboardInterrupt:
            bar.write("Search ended early")


def _loss(examiner: Examiner, batch: Sequence[int], profile: LaneProfile) -> float:
    return examiner.marks(batch, profile).loss


def _verdict(before: Marks, after: Marks, full: Marks, count: int, wins: bool) -> str:
    def change(name: str) -> str:
        old, new, whole = (getattr(each, name) for each in (before, after, full))
        return f"{old:.3f} -> {new:.3f} (full cache {whole:.3f})"

    verdict = "the profile that was searched is kept" if wins else "the lane profile stays as it was measured"
    return (
        f"On {count} passages held out: loss per token {change('loss')}, facts found {change('found')}, "
        f"loss of text that goes on {change('text')}: {verdict}"
    )


def _has_kernels() -> bool:
    try:
        Kernels()
    except KernelsMissing:
        return False
    return True
