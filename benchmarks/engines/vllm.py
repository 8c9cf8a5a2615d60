"""Worker for vLLM on CPUs, with float32 weights and activations."""

from __future__ import annotations

from collections.abc import Iterator

import vllm
from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind

from benchmarks.engines.protocol import Job, Run
from benchmarks.engines.worker import SteppedEngine, serve


class VLLM(SteppedEngine):
    """Its own defaults for the step size; compiled as it does by itself."""

    def __init__(self, job: Job) -> None:
        self.version = vllm.__version__
        llm = LLM(
            job.model,
            dtype="float32",
            enable_prefix_caching=False,
        )
        self._engine = llm.llm_engine
        self._running: list[str] = []
        self._added = 0

    def add(self, run: Run) -> None:
        """See SteppedEngine."""
        sampling = SamplingParams(
            temperature=0,
            max_tokens=run.most_new_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        for prompt in run.prompts:
            self._added += 1  # ids are never used twice
            self._running.append(str(self._added))
            self._engine.add_request(self._running[-1], {"prompt_token_ids": prompt}, sampling)

    def step(self) -> Iterator[int]:
        """See SteppedEngine."""
        for output in self._engine.step():
            yield from [self._running.index(output.request_id)] * len(output.outputs[0].token_ids)

    def clear(self) -> None:
        """See SteppedEngine."""
        self._engine.abort_request(self._running)
        self._running.clear()
        while self._engine.has_unfinished_requests():
            self._engine.step()


if __name__ == "__main__":
    serve(VLLM)
