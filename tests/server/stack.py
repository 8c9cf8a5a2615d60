"""A real engine and a real tokenizer around a model that says what a test wants, with and without a socket."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import httpx
import torch
from fastapi import FastAPI
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from models.sampler import sample
from models.tokenizer import Tokenizer
from scheduler.config import SchedulerConfig
from scheduler.engine import AsyncEngine
from scheduler.plan import SampleOrder, SequenceWork, StepPlan, StepResult, WorkResult
from scheduler.request import TokenLogprob
from scheduler.scheduler import Scheduler
from server.app import create_app
from server.metrics import Metrics
from server.services import Services
from server.settings import ServerSettings
from server.uvicorn_server import make_server

T = TypeVar("T")
Json = dict[str, Any]

MERGES = [("a", "b"), ("c", "d"), ("ab", "cd"), ("h", "i")]
TEMPLATE = (
    "{% for m in messages %}{% if loop.index0 and m['role'] == messages[loop.index0 - 1]['role'] %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}{{ mood }}{{ reasoning_effort }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHAT_HI = [{"role": "user", "content": "hi"}]
CHAT_HI_TEXT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def tiny_tokenizer() -> Tokenizer:
    """One token per byte, some for two or more, and a chat template that wants roles to alternate."""
    symbols = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in MERGES)]
    backend = Backend(BPE({symbol: number for number, symbol in enumerate(symbols)}, MERGES))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", chat_template=TEMPLATE))


class Model:
    """A runner that answers a prompt's text with the tokens it was told to, then ends; others hear "ok".

    `gate`: each step waits for a permit. `failing`: prompts in whose step the runner raises. `step_seconds`: time
    that each step takes. `always`: the answer to every prompt.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.gate: threading.Semaphore | None = None
        self.failing: set[str] = set()
        self.step_seconds = 0.0
        self.num_steps = 0
        self.always: list[int] | None = None
        self._tokenizer = tokenizer
        self._of_byte = {tokenizer.token_bytes(token): token for token in range(256)}
        self._replies: dict[str, list[int]] = {}
        self._tokens: dict[int, list[int]] = {}

    def says(self, reply: str | bytes | list[int], *, to: str = "hi") -> Model:
        """Answer the prompt `to` with `reply`: text and bytes are one token per byte. Returns the model."""
        self._replies[to] = reply if isinstance(reply, list) else self.ids(reply)
        return self

    def ids(self, text: str | bytes) -> list[int]:
        """`text` as one token per byte."""
        return [self._of_byte[bytes([byte])] for byte in (text.encode() if isinstance(text, str) else text)]

    def execute(self, plan: StepPlan) -> StepResult:
        """See `scheduler.engine.Runner`."""
        if self.gate is not None:
            self.gate.acquire()
        time.sleep(self.step_seconds)
        self.num_steps += 1
        return StepResult(tuple(self._compute(work) for work in plan.work))

    def _compute(self, work: SequenceWork) -> WorkResult:
        known = self._tokens.setdefault(work.slot, [])
        known[work.position :] = work.tokens.tolist()
        targets = () if work.targets is None else work.targets.tolist()
        prompt = tuple(self._logprob(token, work.num_top) for token in targets)
        if work.sample is None:
            return WorkResult(prompt=prompt)
        step = work.sample.step
        text = self._tokenizer.decode(known[: len(known) - step], skip_special_tokens=False)
        if text in self.failing and step > 2:
            raise RuntimeError(f"the kernel at 0xdeadbeef failed on {text}")
        reply = self._replies.get(text, self.ids("ok")) if self.always is None else self.always
        token = reply[step] if step < len(reply) else self._tokenizer.eos_token_id or 0
        if token in work.sample.banned:
            token = self.ids(".")[0]
        params = work.sample.params
        if work.sample.constraint is not None or params.allowed_token_ids or params.bad_words:
            return self._nearest(token, work.sample)
        wanted = work.sample.params.logprobs
        return WorkResult(token, None if wanted is None else self._logprob(token, wanted), prompt)

    def _nearest(self, token: int, order: SampleOrder) -> WorkResult:
        """`token` if the order allows it, else the lowest one that is."""
        row = -torch.arange(self._tokenizer.vocab_size).float()
        row[token] = 1.0
        greedy = replace(order.params, temperature=0.0, logprobs=None)
        return sample(row[None], [replace(order, params=greedy)])[0]

    def _logprob(self, token: int, num_top: int) -> TokenLogprob:
        rivals = [(token, -0.5), *(((token + rank) % 256, -1.0 - rank) for rank in range(1, num_top))]
        return TokenLogprob(token, -0.5, tuple(rivals[:num_top]))


@dataclass
class Stack:
    """Everything behind the API, fresh and not started."""

    model: Model
    engine: AsyncEngine
    app: FastAPI

    @property
    def services(self) -> Services:
        """What the routes work with."""
        services: Services = self.app.state.services
        return services

    def run(self, test: Callable[[httpx.AsyncClient], Awaitable[T]]) -> T:
        """Run `test` with a client, without a socket. The stack cannot be used again."""

        async def main() -> T:
            async with (
                self.app.router.lifespan_context(self.app),
                httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://server") as client,
            ):
                return await test(client)

        return asyncio.run(main())

    def post(self, path: str, **body: Any) -> httpx.Response:
        """The answer to one body."""
        return self.run(lambda client: client.post(path, json=body))

    def completion(self, **body: Any) -> Json:
        """A completion, of "hi" if not told otherwise, that must succeed."""
        return succeeded(self.post("/v1/completions", **({"prompt": "hi"} | body)))

    def chat(self, **body: Any) -> Json:
        """A chat completion, of "hi" if not told otherwise, that must succeed."""
        return succeeded(self.post("/v1/chat/completions", **({"messages": CHAT_HI} | body)))

    def completion_events(self, **body: Any) -> list[Json]:
        """The events of a streamed completion."""
        return streamed(self.post("/v1/completions", **({"prompt": "hi", "stream": True} | body)))

    def chat_events(self, **body: Any) -> list[Json]:
        """The events of a streamed chat completion."""
        return streamed(self.post("/v1/chat/completions", **({"messages": CHAT_HI, "stream": True} | body)))


def make_stack(model: Model, tokenizer: Tokenizer, engine: Mapping[str, Any], settings: Mapping[str, Any]) -> Stack:
    """A stack whose engine and server differ from the usual in what `engine` and `settings` hold."""
    options = {"max_model_len": 200, "num_pages": 2001, "max_num_seqs": 8} | dict(engine)
    config = SchedulerConfig(
        num_lanes=2,
        page_size=4,
        max_num_batched_tokens=64,
        policies={"full": None},
        default_policy="full",
        default_budget=1.0,
        eos_token_ids=(tokenizer.eos_token_id or 0,),
        **options,
    )
    metrics = Metrics("tiny", config.max_model_len, {"block_size": "4"})
    running = AsyncEngine(Scheduler(config), model, metrics)
    chosen = ServerSettings(**({"model_names": ("tiny", "org/alias")} | dict(settings)))
    return Stack(model, running, create_app(running, tokenizer, chosen, metrics))


class Live:
    """A stack behind a server on a socket of its own, in a thread."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._server = make_server(stack.app, host="127.0.0.1", port=0, log_level="warning")
        self._loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()
        assert eventually(lambda: self._server.started), "the server does not start"
        self.port: int = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def end(self) -> None:
        """What a signal does."""
        self._loop.call_soon_threadsafe(self._server.end)

    def is_idle(self) -> bool:
        """Whether nothing runs or waits in the engine."""
        stats = self.stack.engine.stats()
        return stats.num_running + stats.num_waiting == 0

    def close(self) -> None:
        """End at once, whatever runs."""
        if self.stack.model.gate is not None:
            self.stack.model.gate.release(100_000)
        for _ in range(2):
            if self.thread.is_alive():
                self.end()
        self.thread.join(10)
        assert not self.thread.is_alive(), "the server does not end"

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._server.serve())


def succeeded(response: httpx.Response) -> Json:
    """The body of a good answer."""
    assert response.status_code == 200, response.text
    body: Json = response.json()
    return body


def streamed(response: httpx.Response) -> list[Json]:
    """The events of a stream that began well."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return sse(response.text)


def sse(text: str) -> list[Json]:
    """The payloads of a stream, which must be framed to the letter and end with [DONE]."""
    *events, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


def texts(events: Sequence[Json]) -> dict[int, str]:
    """The text of each choice of a stream."""
    joined: dict[int, str] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        text = choice["text"] if "text" in choice else choice["delta"].get("content", "")
        joined[choice["index"]] = joined.get(choice["index"], "") + text
    return joined


def eventually(holds: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether `holds` becomes true within `seconds`."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if holds():
            return True
        time.sleep(0.01)
    return holds()
