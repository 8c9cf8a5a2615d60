"""llm, guidellm and schemathesis, as users run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import KEY, MODEL, Server

BIN = Path(sys.executable).parent


def run(command: list[str], folder: Path, **environment: str) -> str:
    """What a command prints that runs in `folder`; it must succeed."""
    done = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"[-6000:]
    return done.stdout


@pytest.fixture
def llm_folder(server: Server, tmp_path: Path) -> Path:
    """A user's folder of `llm` that knows the server."""
    models = f"- model_id: here\n  model_name: {MODEL}\n  api_base: {server.v1}\n  api_key_name: here\n"
    models += "  supports_schema: true\n  supports_tools: true\n"
    (tmp_path / "extra-openai-models.yaml").write_text(models)
    (tmp_path / "keys.json").write_text(json.dumps({"here": KEY}))
    return tmp_path


def test_llm(llm_folder: Path) -> None:
    command = [str(BIN / "llm"), "-m", "here", "-o", "max_tokens", "8", "-o", "temperature", "0", "Say hi."]
    streamed = run(command, llm_folder, LLM_USER_PATH=str(llm_folder))
    whole = run([*command, "--no-stream"], llm_folder, LLM_USER_PATH=str(llm_folder))
    assert streamed.strip() == whole.strip() != ""


def test_llm_with_a_schema(llm_folder: Path) -> None:
    command = [str(BIN / "llm"), "-m", "here", "--schema", "age int", "How old is a cat?", "-o", "max_tokens", "100"]
    assert isinstance(json.loads(run(command, llm_folder, LLM_USER_PATH=str(llm_folder)))["age"], int)


def test_guidellm(server: Server, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    run(
        [
            str(BIN / "guidellm"), "run", "--disable-console",
            "--backend", f"kind=openai_http,target={server.url},model={server.folder},api_key={KEY}",
            "--profile", "kind=synchronous", "--constraint", "kind=max_requests,count=3",
            "--data", "kind=synthetic_text,prompt_tokens=24,output_tokens=8", "--output", f"kind=json,path={report}",
        ],
        tmp_path,
        HF_HUB_OFFLINE="1",
    )  # fmt: skip
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    assert len(benchmark["requests"]["successful"]) == 3
    assert benchmark["requests"]["errored"] == []


def test_schemathesis(small_server: Server, tmp_path: Path) -> None:
    config = tmp_path / "schemathesis.toml"
    config.write_text("[generation]\nallow-x00 = false\n")
    run(
        [
            str(BIN / "schemathesis"), "--config-file", str(config), "run", f"{small_server.url}/openapi.json",
            "--header", f"Authorization: Bearer {KEY}", "--max-examples", "10", "--phases", "examples,fuzzing",
            "--checks", "not_a_server_error,response_schema_conformance,content_type_conformance",
            "--request-timeout", "120", "--exclude-path-regex", "/health|/ping",
        ],
        tmp_path,
    )  # fmt: skip
