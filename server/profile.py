"""`--profile`: where the time of the engine's steps went, told when the server stops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from scheduler.stats import StepStats

_KINDS = {False: "Steps that only decode", True: "Steps that read prompts"}


class StepProfile:
    """Adds up steps, those that only decode apart from those that read prompts. An `EngineObserver`."""

    def __init__(self) -> None:
        self._seconds = {kind: Counter[str]() for kind in _KINDS}
        self._steps: Counter[bool] = Counter()
        self._tokens: Counter[bool] = Counter()

    def step_done(self, step: StepStats) -> None:
        """See `scheduler.stats.EngineObserver`."""
        kind = step.num_prompt_tokens > 0
        self._steps[kind] += 1
        self._tokens[kind] += step.num_tokens
        self._seconds[kind].update(step.parts)

    def report(self) -> Iterator[str]:
        """Lines of a table: milliseconds of a mean step, and its parts, longest first."""
        for kind, title in _KINDS.items():
            steps, total = self._steps[kind], sum(self._seconds[kind].values())
            if steps == 0:
                continue
            yield f"{title}: {steps:,}, of {self._tokens[kind] / steps:.1f} tokens, {1e3 * total / steps:.2f} ms"
            for part, seconds in self._seconds[kind].most_common():
                yield f"  {part:<12}{1e3 * seconds / steps:9.2f} ms {100 * seconds / total:5.1f} %"
