"""Worker for this project's engine without HTTP: scheduler and runner on one thread."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.engines.protocol import Job, Run
from benchmarks.engines.worker import SteppedEngine, serve
from scheduler.request import GenerationRequest, SamplingParams
from scheduler.sequence import Sequence
from server.cli import engine_options, own_version, parse
from server.launch import assemble


class Local(SteppedEngine):
    """Takes the server's flags."""

    def __init__(self, job: Job) -> None:
        self.version = own_version()
        assembly = assemble(engine_options(parse(job.flags)))
        self._scheduler, self._runner = assembly.scheduler, assembly.runner
        self._sequences: list[Sequence] = []

    def add(self, run: Run) -> None:
        """See SteppedEngine."""
        params = SamplingParams(max_tokens=run.most_new_tokens, temperature=0.0, ignore_eos=True)
        for number, prompt in enumerate(run.prompts):
            self._sequences += self._scheduler.add(GenerationRequest(str(number), tuple(prompt), params))

    def step(self) -> Iterator[int]:
        """See SteppedEngine."""
        plan = self._scheduler.plan()
        if plan is None:
            raise RuntimeError("nothing is left to do, though a sequence has not brought its tokens")
        self._scheduler.apply(self._runner.execute(plan))
        for sequence, event in self._scheduler.take_events():
            if event.finish is not None and event.finish.error is not None:
                raise RuntimeError(event.finish.error)
            yield from [int(sequence.request.request_id)] * len(event.tokens)

    def clear(self) -> None:
        """See SteppedEngine."""
        for sequence in self._sequences:
            self._scheduler.end(sequence, "abort")
        self._sequences.clear()
        self._scheduler.take_events()


if __name__ == "__main__":
    serve(Local)
