"""Worker for OpenVINO GenAI's continuous batching."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import openvino
import openvino_genai as genai

from benchmarks.engines.protocol import Job, Run
from benchmarks.engines.worker import SteppedEngine, serve

_BLOCK = 32  # tokens in a KV block on CPUs


class OpenVINO(SteppedEngine):
    """Its own defaults for precision and step size; KV blocks for the largest run."""

    def __init__(self, job: Job) -> None:
        self.version = genai.get_version()
        config = genai.SchedulerConfig()
        config.enable_prefix_caching = False
        config.num_kv_blocks = job.most_tokens // _BLOCK + 2 * job.most_sequences
        properties = {"INFERENCE_NUM_THREADS": job.threads}
        self._pipeline = genai.ContinuousBatchingPipeline(job.model, config, "CPU", properties)
        self._handles: list[genai.GenerationHandle] = []

    def add(self, run: Run) -> None:
        """See SteppedEngine."""
        config = genai.GenerationConfig(max_new_tokens=run.most_new_tokens, ignore_eos=True, do_sample=False)
        for number, prompt in enumerate(run.prompts):
            ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
            self._handles.append(self._pipeline.add_request(number, ids, config))

    def step(self) -> Iterator[int]:
        """See SteppedEngine."""
        self._pipeline.step()
        for number, handle in enumerate(self._handles):
            while handle.can_read():
                for output in handle.read().values():
                    yield from [number] * len(output.generated_ids)

    def clear(self) -> None:
        """See SteppedEngine."""
        for handle in self._handles:
            handle.stop()
        self._handles.clear()
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()


if __name__ == "__main__":
    serve(OpenVINO)
