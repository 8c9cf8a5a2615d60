"""A real engine and a real tokenizer around a model that says what a test wants, with and without a socket."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from models.tokenizer import Tokenizer
from scheduler.config import SchedulerConfig
from scheduler.engine import AsyncEngine
from scheduler.plan import SequenceWork, StepPlan, StepResult, WorkResult
from scheduler.request import TokenLogprob
from scheduler.scheduler import Scheduler
from server.app import create_app
from server.lifecycle import Lifecycle
from server.metrics import Metrics
from server.settings import ServerSettings
from server.uvicorn_server import make_server

T = TypeVar("T")

MERGES = [("a", "b"), ("c", "d"), ("ab", "cd"), ("h", "i")]
TEMPLATE = (
    "{% for m in messages %}{% if loop.index0 and m['role'] == messages[loop.index0 - 1]['role'] %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}{{ mood }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """One token per byte, some for two or more, and a chat template that wants roles to alternate."""
    symbols = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in MERGES)]
    backend = Backend(BPE({symbol: number for number, symbol in enumerate(symbols)}, MERGES))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    pretrained = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", chat_template=TEMPLATE)
    return Tokenizer(pretrained)


def byte_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """`data` as one token per byte."""
    of_byte = {tokenizer.token_bytes(token): token for token in range(256)}
    return [of_byte[bytes([byte])] for byte in data]


@dataclass
class Model:
    """Answers a prompt's text with the tokens that `replies` has for it, and ends. Unknown prompts get "ok".

    `gate`: when set, each step waits for a permit. `failing`: prompts whose step raises.
    """

    tokenizer: Tokenizer
    replies: dict[str, Sequence[int]] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    gate: threading.Semaphore | None = None
    step_seconds: float = 0.0
    num_steps: int = 0
    _tokens: dict[int, list[int]] = field(default_factory=dict)

    def says(self, reply: str | bytes | Sequence[int], *, to: str = "hi") -> Model:
        """Answer the prompt `to` with `reply`, of which a string or bytes are one token per byte."""
        if isinstance(reply, str):
            reply = reply.encode()
        self.replies[to] = byte_ids(self.tokenizer, reply) if isinstance(reply, bytes) else reply
        return self

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
        prompt = (
            () if work.targets is None else tuple(self._logprob(int(token), work.num_top) for token in work.targets)
        )
        if work.sample is None:
            return WorkResult(prompt=prompt)
        step = work.sample.step
        text = self.tokenizer.decode(known[: len(known) - step], skip_special_tokens=False)
        if text in self.failing:
            raise RuntimeError(f"the kernel failed at 0xdeadbeef for {text}")
        reply = self.replies.get(text, byte_ids(self.tokenizer, b"ok"))
        end = self.tokenizer.eos_token_id or 0
        token = reply[step] if step < len(reply) else end
        if token in work.sample.banned:
            token = byte_ids(self.tokenizer, b".")[0]
        wanted = work.sample.params.logprobs
        return WorkResult(token, None if wanted is None else self._logprob(token, wanted), prompt)

    def _logprob(self, token: int, num_top: int) -> TokenLogprob:
        rivals = [(token, -0.5), *(((token + rank) % 256, -1.0 - rank) for rank in range(1, num_top))]
        return TokenLogprob(token, -0.5, tuple(rivals[:num_top]))


@dataclass
class Stack:
    """Everything behind the API, fresh and not started."""

    model: Model
    engine: AsyncEngine
    app: FastAPI
    metrics: Metrics
    lifecycle: Lifecycle

    def run(self, test: Callable[[httpx.AsyncClient], Awaitable[T]]) -> T:
        """Run `test` with a client, without a socket."""

        async def main() -> T:
            transport = httpx.ASGITransport(self.app)
            async with (
                self.app.router.lifespan_context(self.app),
                httpx.AsyncClient(transport=transport, base_url="http://server") as client,
            ):
                return await test(client)

        return asyncio.run(main())

    def post(self, path: str, **body: Any) -> httpx.Response:
        """The answer to one body; the stack cannot be used again."""
        return self.run(lambda client: client.post(path, json=body))

    def completion(self, **body: Any) -> dict[str, Any]:
        """A completion that must succeed."""
        return succeeded(self.post("/v1/completions", **({"prompt": "hi"} | body)))

    def chat(self, **body: Any) -> dict[str, Any]:
        """A chat completion that must succeed."""
        return succeeded(
            self.post("/v1/chat/completions", **({"messages": [{"role": "user", "content": "hi"}]} | body))
        )

    def events(self, path: str, **body: Any) -> list[Any]:
        """The events of a stream that must begin well."""
        response = self.post(path, stream=True, **body)
        assert response.status_code == 200, response.text
        return sse(response.text)


def succeeded(response: httpx.Response) -> dict[str, Any]:
    """The body of a good answer."""
    assert response.status_code == 200, response.text
    return response.json()


def sse(text: str) -> list[Any]:
    """The payloads of a stream, which must be framed to the letter and end with [DONE]."""
    *events, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


StackFactory = Callable[..., Stack]


@pytest.fixture
def stack(tokenizer: Tokenizer) -> StackFactory:
    """`stack(model, settings..., engine=dict(max_model_len=...))`."""

    def make(model: Model | None = None, *, engine: Mapping[str, Any] | None = None, **settings: Any) -> Stack:
        model = model or Model(tokenizer)
        options: dict[str, Any] = {"max_model_len": 200, "num_pages": 2001, "max_num_seqs": 8, **(engine or {})}
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
        metrics = Metrics("tiny", config.max_model_len)
        running = AsyncEngine(Scheduler(config), model, metrics)
        chosen = ServerSettings(**({"model_names": ("tiny", "org/alias")} | settings))
        app = create_app(running, tokenizer, chosen, metrics)
        return Stack(model, running, app, metrics, app.state.services.lifecycle)

    return make


@pytest.fixture
def model(tokenizer: Tokenizer) -> Model:
    """A model that says "ok" until it is told more."""
    return Model(tokenizer)


@dataclass
class Live:
    """A server on a socket of its own, in a thread."""

    url: str
    port: int
    stack: Stack
    thread: threading.Thread
    _loop: asyncio.AbstractEventLoop
    _end: Callable[[], None]

    def end(self) -> None:
        """What a signal does."""
        self._loop.call_soon_threadsafe(self._end)

    def idle(self, seconds: float = 2.0) -> bool:
        """Whether nothing runs or waits in the engine, within `seconds`."""
        return eventually(lambda: (s := self.stack.engine.stats()).num_running + s.num_waiting == 0, seconds)


def eventually(holds: Callable[[], bool], seconds: float = 2.0) -> bool:
    """Whether `holds` becomes true within `seconds`."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if holds():
            return True
        time.sleep(0.01)
    return holds()


@pytest.fixture
def live() -> Iterator[Callable[[Stack], Live]]:
    """`live(stack)`: the stack behind a real server, which ends with the test."""
    running: list[Live] = []

    def start(stack: Stack) -> Live:
        server = make_server(stack.app, host="127.0.0.1", port=0, log_level="warning")
        loops: list[asyncio.AbstractEventLoop] = []

        async def serve() -> None:
            loops.append(asyncio.get_running_loop())
            await server.serve()

        thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
        thread.start()
        assert eventually(lambda: server.started, 5)
        port = _port(server)
        running.append(Live(f"http://127.0.0.1:{port}", port, stack, thread, loops[0], server.end))
        return running[-1]

    yield start
    for served in running:
        if served.thread.is_alive():
            if served.stack.model.gate is not None:
                served.stack.model.gate.release(10_000)
            served.end()
            served.end()
            served.thread.join(10)
        assert not served.thread.is_alive(), "the server does not end"


def _port(server: uvicorn.Server) -> int:
    port: int = server.servers[0].sockets[0].getsockname()[1]
    return port
