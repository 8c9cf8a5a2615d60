"""Worker for llama.cpp, through its C interface as llama-cpp-python hands it over."""

from __future__ import annotations

from collections.abc import Sequence

import llama_cpp
import numpy as np

from benchmarks.engines.protocol import Job, Run
from benchmarks.engines.worker import SteppedEngine, serve

_BATCH = 2048  # tokens handed over at once, llama.cpp's own default; it computes them in pieces of 512


class LlamaCpp(SteppedEngine):
    """One prompt a step while there are any, then all sequences together; KV memory apart for each sequence."""

    def __init__(self, job: Job) -> None:
        self.version = llama_cpp.__version__
        self._threads = job.threads
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(job.model.encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {job.model}")
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(_BATCH, 0, 1)
        self._context: llama_cpp.llama_context_p | None = None
        self._unread: list[list[int]] = []
        self._lengths: list[int] = []
        self._last: list[int] = []

    def prepare(self, run: Run) -> None:
        """See SteppedEngine: memory for this run, and no more."""
        if self._context is not None:
            llama_cpp.llama_free(self._context)
        parameters = llama_cpp.llama_context_default_params()
        longest = max(map(len, run.prompts)) + run.most_new_tokens
        parameters.n_ctx = longest * len(run.prompts)
        parameters.n_seq_max = len(run.prompts)
        parameters.n_batch = _BATCH
        parameters.n_threads = parameters.n_threads_batch = self._threads
        parameters.kv_unified = False
        self._context = llama_cpp.llama_init_from_model(self._model, parameters)

    def add(self, run: Run) -> None:
        """See SteppedEngine."""
        self._unread = list(reversed(run.prompts))

    def step(self) -> Sequence[int]:
        """See SteppedEngine."""
        if self._unread:
            self._read(self._unread.pop())
            return [len(self._lengths) - 1]
        everyone = range(len(self._lengths))
        for number in everyone:
            self._put(number, self._last[number], self._lengths[number], number, wanted=True)
            self._lengths[number] += 1
        self._decode(len(everyone))
        self._last = [self._best(number) for number in everyone]
        return everyone

    def clear(self) -> None:
        """See SteppedEngine."""
        self._lengths.clear()
        self._last.clear()

    def _read(self, prompt: list[int]) -> None:
        number = len(self._lengths)
        for start in range(0, len(prompt), _BATCH):
            piece = prompt[start : start + _BATCH]
            for offset, token in enumerate(piece):
                position = start + offset
                self._put(offset, token, position, number, wanted=position == len(prompt) - 1)
            self._decode(len(piece))
        self._lengths.append(len(prompt))
        self._last.append(self._best(-1))

    def _put(self, place: int, token: int, position: int, sequence: int, *, wanted: bool) -> None:
        batch = self._batch
        batch.token[place], batch.pos[place], batch.logits[place] = token, position, wanted
        batch.n_seq_id[place], batch.seq_id[place][0] = 1, sequence

    def _decode(self, count: int) -> None:
        self._batch.n_tokens = count
        status = llama_cpp.llama_decode(self._context, self._batch)
        if status != 0:
            raise RuntimeError(f"llama_decode: {status}")

    def _best(self, place: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, place)
        return int(np.ctypeslib.as_array(logits, (self._vocabulary,)).argmax())


if __name__ == "__main__":
    serve(LlamaCpp)
