"""The product as a user meets it: the real server in its own process, the default model, OpenAI's client."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

pytestmark = pytest.mark.model

MODEL = "SmolLM2-135M-Instruct"
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
FLAGS = ["--kv-cache-memory-bytes", "16MiB", "--max-num-seqs", "8", "--max-num-batched-tokens", "256"]


class Served:
    """A server process and its address."""

    def __init__(self, log: Path, *flags: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        with log.open("wb") as output:
            command = [sys.executable, "-m", "server", "--port", str(port), *FLAGS, *flags]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        deadline = time.monotonic() + 120
        while not self.healthy():
            assert self.process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, "not healthy in time"
            time.sleep(0.1)

    def healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def metric(self, name: str) -> float:
        text = httpx.get(f"{self.url}/metrics", timeout=10).text
        values = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        assert values, f"no metric {name}"
        return sum(map(float, values))

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture(scope="module")
def served(default_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(tmp_path_factory.mktemp("served") / "log")
    yield server
    assert server.end() == 0
    assert "Traceback" not in server.log.read_text()


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=120, _strict_response_validation=True
    ) as strict:
        yield strict


def test_the_capital_of_france(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=FRANCE, temperature=0)  # type: ignore[arg-type]
    text = whole.choices[0].message.content or ""
    assert "Paris" in text
    chunks = client.chat.completions.create(model=MODEL, messages=FRANCE, temperature=0, stream=True)  # type: ignore[arg-type]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_echo_scores_a_prompt_without_generating(client: openai.OpenAI) -> None:
    client._strict_response_validation = False  # the first logprob is null, as in OpenAI's answers, not in its types
    made = client.completions.create(
        model=MODEL, prompt="Paris is the capital of France.", echo=True, logprobs=1, max_tokens=0
    )
    scored = made.choices[0].logprobs
    assert scored is not None
    assert "".join(scored.tokens or []) == made.choices[0].text == "Paris is the capital of France."
    assert [value is None for value in scored.token_logprobs or []] == [True] + [False] * (len(scored.tokens or []) - 1)
    assert made.usage is not None
    assert made.usage.completion_tokens == 0


def test_a_seed_repeats_alone_and_in_company(client: openai.OpenAI) -> None:
    def ask(seed: int) -> str:
        made = client.completions.create(
            model=MODEL, prompt="Once upon a time", max_tokens=20, temperature=1, seed=seed
        )
        return made.choices[0].text

    alone = ask(7)
    results: dict[int, str] = {}
    threads = [threading.Thread(target=lambda seed=seed: results.update({seed: ask(seed)})) for seed in range(5, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results[7] == alone
    assert len(set(results.values())) > 1


def test_a_small_pool_evicts_instead_of_queueing(served: Served, client: openai.OpenAI) -> None:
    """Six prompts of 400 tokens: 16 MiB hold two of them whole."""
    before = served.metric("scissorserve:kv_pages_freed_total")
    texts: list[str] = []

    def ask(number: int) -> None:
        made = client.completions.create(
            model=MODEL, prompt=[100 + number] * 400, max_tokens=40, temperature=0, extra_body={"ignore_eos": True}
        )
        texts.append(made.choices[0].text)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 6
    assert served.metric("scissorserve:kv_pages_freed_total") > before
    assert served.metric("vllm:num_preemptions_total") == 0
    assert served.metric("vllm:kv_cache_usage_perc") == 0


def test_a_client_that_leaves_frees_its_pages(served: Served) -> None:
    body = {"prompt": "The", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()  # kept, since dropping it would close the connection
        assert next(lines).startswith("data: ")
        assert served.metric("vllm:num_requests_running") == 1
    deadline = time.monotonic() + 30
    while served.metric("vllm:num_requests_running") > 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert served.metric("vllm:kv_cache_usage_perc") == 0


_NESTED = '{"messages":' + "[" * 100_000 + "]" * 100_000 + "}"
BAD_BODIES: dict[str, bytes] = {
    "not json": b"{",
    "not an object": b"[1, 2]",
    "empty": b"",
    "invalid utf-8": b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
    "deep nesting": _NESTED.encode(),
    "no messages": b"{}",
    "empty messages": b'{"messages": []}',
    "unknown model": b'{"model": "nope", "messages": [{"role": "user", "content": "x"}]}',
    "nan": b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
    "infinity": b'{"messages": [{"role": "user", "content": "x"}], "top_p": 1e999}',
    "text for a number": b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": "5"}',
    "negative": b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": -1}',
    "huge": b'{"messages": [{"role": "user", "content": "x"}], "seed": ' + b"9" * 400 + b"}",
    "no tokens wanted": b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}',
    "n": b'{"messages": [{"role": "user", "content": "x"}], "n": 1000000000}',
    "stops": json.dumps({"messages": FRANCE, "stop": ["x"] * 5000}).encode(),
    "budget": b'{"messages": [{"role": "user", "content": "x"}], "kv_budget": -0.5}',
    "policy": b'{"messages": [{"role": "user", "content": "x"}], "kv_policy": "best"}',
    "too long": json.dumps({"messages": [{"role": "user", "content": "word " * 20_000}]}).encode(),
    "never fits": json.dumps(
        {"messages": [{"role": "user", "content": "word " * 3_000}], "kv_policy": "full"}
    ).encode(),
    "50 MB": b'{"messages": [{"role": "user", "content": "' + b"x" * 50_000_000 + b'"}]}',
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_users_mistake_gets_a_4xx_that_says_what_to_change(served: Served, name: str) -> None:
    headers = {"Content-Type": "application/json"}
    try:
        response = httpx.post(
            f"{served.url}/v1/chat/completions", content=BAD_BODIES[name], headers=headers, timeout=60
        )
    except httpx.WriteError:  # the server answers and closes before it has read all of a body that is too large
        assert name == "50 MB"
        return
    assert 400 <= response.status_code < 500, response.text
    error = response.json()["error"]
    assert len(error["message"]) > 10
    assert {"message", "type", "param", "code"} == set(error)
    assert served.healthy()


def test_neighbours_of_bad_requests_lose_nothing(served: Served, client: openai.OpenAI) -> None:
    ask = {"model": MODEL, "prompt": "One, two, three,", "max_tokens": 60, "temperature": 0}
    alone = client.completions.create(**ask).choices[0].text  # type: ignore[call-overload]
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(client.completions.create(**ask).choices[0].text))  # type: ignore[call-overload]
    thread.start()
    for body in BAD_BODIES.values():
        if len(body) < 1_000_000:
            httpx.post(f"{served.url}/v1/chat/completions", content=body, timeout=60)
    thread.join()
    assert found == [alone]


def test_a_signal_lets_running_requests_finish(default_model_folder: Path, tmp_path: Path) -> None:
    server = Served(tmp_path / "log")
    body = {"prompt": "The", "max_tokens": 60, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        while httpx.get(f"{server.url}/health", timeout=5).status_code != 503:
            time.sleep(0.01)
        assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=5).status_code == 503
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in rest[-2]
    assert server.process.wait(30) == 0


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["/nowhere/model.gguf"], "no such file"),
        (["--kv-cache-memory-bytes", "256KiB"], "give at least"),
        (["--max-model-len", "100000000"], "exceeds the 8192 tokens"),
        (["--kv-budget", "1.5"], "neither a share such as 0.2"),
        (["--kv-policy", "best"], "invalid choice"),
        (["--max-num-seqs", "64", "--max-num-batched-tokens", "64"], "must exceed max_num_seqs"),
        (["--api-key", ""], "empty"),
    ],
)
def test_a_wrong_flag_gets_one_line(flags: list[str], sentence: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "server", *flags], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("scissorserve: error: ")
