"""Every dataset makes prompts of the lengths that were asked for, and what is special about each."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from client.errors import BenchError
from client.lengths import draw_lengths
from client.material import Material, load_tokenizer
from client.plugins import load_all
from client.prompts import Prompt, Session

DATASETS = load_all("client.datasets", "DATASET")
CONVERSATIONS = [
    {
        "conversations": [
            {"from": "human", "value": f"What is number {i}?"},
            {"from": "gpt", "value": "It is " + "so " * i},
            {"from": "human", "value": "And then?"},
            {"from": "gpt", "value": "Nothing."},
        ]
    }
    for i in range(1, 6)
]
TRACE = [{"timestamp": 500 * i, "input_length": 20 + i, "output_length": 5} for i in range(8)]


def material(seed: int = 0, *, as_ids: bool = True, tokenizer: Tokenizer | None = None) -> Material:
    return Material(np.random.default_rng(seed), as_ids, tokenizer)


def text_of(prompt: Prompt) -> str:
    assert isinstance(prompt.content, str)
    return prompt.content


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A file for each dataset that reads one."""
    texts = {
        "text": " ".join(f"w{i:03d}" for i in range(1400)),
        "sharegpt": json.dumps(CONVERSATIONS),
        "trace": "\n".join(map(json.dumps, TRACE)),
        "custom": "\n".join(json.dumps({"prompt": f"What is number {i}?", "output_tokens": i}) for i in range(1, 6)),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return {name: tmp_path / name for name in texts}


def make(name: str, files: dict[str, Path], **knobs: Any) -> Any:
    path = {"path": files[name]} if name in files else {}
    return DATASETS[name](**path, **knobs)


@pytest.mark.parametrize("as_ids", [True, False])
@pytest.mark.parametrize("name", DATASETS)
def test_sessions_are_many_enough_and_the_seed_decides(name: str, files: dict[str, Path], as_ids: bool) -> None:
    dataset = make(name, files)
    first, again, other = (dataset.sessions(5, material(seed, as_ids=as_ids)) for seed in (1, 1, 2))
    assert len(first) == 5
    assert first == again
    assert first != other
    for session in first:
        for prompt in session.prompts:
            assert prompt.input_len >= 1
            assert prompt.output_len >= 1
            assert isinstance(prompt.content, str) or (as_ids and len(prompt.content) == prompt.input_len)


@pytest.mark.parametrize("name", DATASETS)
def test_a_dataset_is_a_frozen_dataclass_of_flags_with_defaults(name: str) -> None:
    assert DATASETS[name]() == DATASETS[name]()
    assert all("flag" in one.metadata for one in fields(DATASETS[name]))


@given(st.integers(1, 3000), st.floats(0, 0.99), st.integers(0, 9))
def test_uniform_lengths_stay_within_their_range(mean: int, spread: float, seed: int) -> None:
    lengths = draw_lengths(np.random.default_rng(seed), mean, spread, "uniform", 20)
    assert all(length >= 1 and abs(length - mean) <= mean * spread + 0.5 for length in lengths)


def test_lognormal_lengths_have_the_mean_and_the_spread_and_a_long_tail() -> None:
    lengths = np.array(draw_lengths(np.random.default_rng(0), 500, 0.8, "lognormal", 50_000))
    assert lengths.mean() == pytest.approx(500, rel=0.02)
    assert lengths.std() == pytest.approx(400, rel=0.05)
    assert np.median(lengths) < 420
    assert lengths.max() > 3000


def test_random_ids_leave_out_the_special_ones() -> None:
    (session,) = DATASETS["random"](input_len=500, vocab_size=100).sessions(1, material())
    content = session.prompts[0].content
    assert all(10 <= token < 100 for token in content)


def test_words_are_cut_to_exact_length(tokenizer: Path) -> None:
    (session,) = DATASETS["random"](input_len=50).sessions(
        1, material(as_ids=False, tokenizer=load_tokenizer(tokenizer))
    )
    assert len(text_of(session.prompts[0]).split()) == 50


def test_text_slices_without_a_tokenizer_are_estimates(files: dict[str, Path]) -> None:
    for session in make("text", files, input_len=30).sessions(5, material()):
        assert len(text_of(session.prompts[0])) == 120
        assert text_of(session.prompts[0]) in files["text"].read_text()


def test_text_slices_with_a_tokenizer_are_exact(files: dict[str, Path], tokenizer: Path) -> None:
    dataset, loaded = make("text", files, input_len=30), load_tokenizer(tokenizer / "tokenizer.json")
    texts = dataset.sessions(5, material(as_ids=False, tokenizer=loaded))
    ids = dataset.sessions(5, material(as_ids=True, tokenizer=loaded))
    assert all(len(text_of(session.prompts[0]).split()) == 30 for session in texts)
    assert all(session.prompts[0].content == [0] * 30 for session in ids)


def test_a_text_that_is_too_short_says_so(files: dict[str, Path]) -> None:
    with pytest.raises(BenchError, match=r"about 1849 tokens, prompts may need 2000: .*--input-len"):
        make("text", files, input_len=2000).sessions(1, material())


def test_prefixes_come_equally_often_and_suffixes_never_twice() -> None:
    dataset = DATASETS["prefix-repetition"](prefix_len=6, suffix_len=4, num_prefixes=3)
    contents = [session.prompts[0].content for session in dataset.sessions(12, material())]
    prefixes = [tuple(content[:6]) for content in contents]
    assert sorted(prefixes.count(prefix) for prefix in set(prefixes)) == [4, 4, 4]
    assert len({tuple(content[6:]) for content in contents}) == 12
    assert prefixes != sorted(prefixes, key=prefixes.index)


def test_conversations_have_turns_with_pauses_between() -> None:
    dataset = DATASETS["multi-turn"](input_len=9, num_turns=3, think_time=2.0)
    sessions = dataset.sessions(300, material())
    assert all(len(session.prompts) == 3 and session.prompts[0].pause == 0 for session in sessions)
    pauses = [prompt.pause for session in sessions for prompt in session.prompts[1:]]
    assert np.mean(pauses) == pytest.approx(2.0, rel=0.2)


def test_recorded_conversations_give_prompts_and_lengths(files: dict[str, Path], tokenizer: Path) -> None:
    source = material(tokenizer=load_tokenizer(tokenizer))
    sessions = make("sharegpt", files, num_turns=2).sessions(10, source)
    by_prompt = {text_of(session.prompts[0]): session for session in sessions}
    assert len(by_prompt) == 5
    first, second = by_prompt["What is number 4?"].prompts
    assert (first.input_len, first.output_len) == (5, 6)
    assert (second.content, second.output_len) == ("And then?", 2)


def test_conversations_in_openais_words_and_with_a_fixed_length(tmp_path: Path) -> None:
    path = tmp_path / "messages.json"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    path.write_text(json.dumps([{"messages": [*messages, {"role": "assistant", "content": "Hello"}]}]))
    (session,) = DATASETS["sharegpt"](path=path, output_len=7).sessions(1, material())
    assert [(prompt.content, prompt.output_len) for prompt in session.prompts] == [("Hi", 7)]


@pytest.mark.parametrize("name", ["random", "text"])
@pytest.mark.parametrize("per_prompt", [1, 5])
def test_facts_are_planted_and_one_is_asked_for(files: dict[str, Path], name: str, per_prompt: int) -> None:
    path = {"path": files["text"]} if name == "text" else {}
    dataset = DATASETS["facts"](input_len=400, per_prompt=per_prompt, **path)
    places = []
    for session in dataset.sessions(30, material()):
        (prompt,) = session.prompts
        text = text_of(prompt)
        town = text.rsplit("town ", 1)[1].removesuffix(" is")
        assert text.count("The secret number of the town ") == per_prompt + 1
        assert f"The secret number of the town {town} is {prompt.expects}." in text
        assert prompt.input_len == pytest.approx(400, rel=0.6)
        places.append(text.index(str(prompt.expects)) / len(text))
    assert min(places) < 0.2
    assert max(places) > 0.7


@pytest.mark.parametrize(
    ("knobs", "message"),
    [({"input_len": 20}, "--input-len 20 has no room for 1 facts"), ({"per_prompt": 101}, "may be 100 at most")],
)
def test_facts_that_do_not_fit(knobs: dict[str, int], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        DATASETS["facts"](**knobs).sessions(1, material())


def trace(tmp_path: Path, name: str, text: str, **knobs: Any) -> list[Session]:
    path = tmp_path / name
    path.write_text(text)
    sessions: list[Session] = DATASETS["trace"](path=path, **knobs).sessions(100, material())
    return sessions


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mooncake.jsonl", "\n".join(json.dumps(row) for row in TRACE[:2])),
        ("burst.csv", "Timestamp,Model,Request tokens,Response tokens\n7,m,20,5\n7.5,m,21,5\n"),
        (
            "azure.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6800000,20,5\n2023-11-16 18:15:47.18,21,5\n",
        ),
        ("ours.csv", "due_s,request_id,input_tokens,output_tokens\n0.5,b,21,5\n0.0,a,20,5\n"),
    ],
)
def test_traces_of_every_known_kind(tmp_path: Path, name: str, text: str) -> None:
    sessions = trace(tmp_path, name, text)
    assert [(session.due, session.prompts[0].input_len) for session in sessions] == [(0.0, 20), (0.5, 21)]
    assert all(session.prompts[0].output_len == 5 for session in sessions)


def test_blocks_of_a_trace_are_equal_where_their_numbers_are(tmp_path: Path) -> None:
    rows = [{"timestamp": 0, "input_length": 1100, "output_length": 1, "hash_ids": [3, ids, 9]} for ids in (4, 5)]
    first, second = (one.prompts[0].content for one in trace(tmp_path, "t.jsonl", "\n".join(map(json.dumps, rows))))
    assert len(first) == len(second) == 1100
    assert first[:512] == second[:512]
    assert first[512:1024] != second[512:1024]


def test_long_requests_of_a_trace_can_be_left_out(tmp_path: Path) -> None:
    text = "\n".join(map(json.dumps, TRACE))
    assert len(trace(tmp_path, "t.jsonl", text, max_len=27)) == 3


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.jsonl", "{oops", "line 1 is no JSON"),
        ("t.jsonl", "[1]", "line 1 is no JSON object"),
        ("t.jsonl", '{"a": 1}', "has none of the known columns: timestamp, input_length"),
        ("t.jsonl", '{"timestamp": 0, "input_length": "x", "output_length": 1}', "request 1: "),
        ("t.jsonl", '{"timestamp": 0, "input_length": 2}', "request 1: 'output_length'"),
        ("t.csv", "", "holds no request"),
    ],
)
def test_files_that_are_no_trace(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        trace(tmp_path, name, text)


@pytest.mark.parametrize("name", ["custom", "sharegpt"])
def test_the_order_of_a_file_is_kept_if_wanted(name: str, files: dict[str, Path]) -> None:
    sessions = make(name, files, disable_shuffle=True).sessions(7, material())
    numbers = [text_of(session.prompts[0]).removeprefix("What is number ") for session in sessions]
    assert numbers == ["1?", "2?", "3?", "4?", "5?", "1?", "2?"]


def test_prompts_of_ones_own(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "one two"}\n\n{"prompt": "three\u2028", "output_tokens": 7}\n')
    source = material(tokenizer=load_tokenizer(tokenizer))
    sessions = DATASETS["custom"](path=tmp_path / "p.jsonl", disable_shuffle=True).sessions(2, source)
    assert [session.prompts for session in sessions] == [(Prompt("one two", 2, 128),), (Prompt("three\u2028", 1, 7),)]
    (session,) = DATASETS["custom"](path=tmp_path / "p.jsonl", output_len=9).sessions(1, source)
    assert session.prompts[0].output_len == 9


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"prompt": ""}', '{"prompt": "a", "output_tokens": 0}'])
def test_lines_that_are_no_prompt_are_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "one"}\n' + line)
    with pytest.raises(BenchError, match=r"line 2 of .* must be like"):
        DATASETS["custom"](path=tmp_path / "p.jsonl").sessions(1, material())
    (tmp_path / "p.jsonl").write_text("\n")
    with pytest.raises(BenchError, match="has no prompt"):
        DATASETS["custom"](path=tmp_path / "p.jsonl").sessions(1, material())


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "no ShareGPT file"), ("[{}]", "no ShareGPT file"), ("[]", "has no conversation"), ("[1]", "no ShareGPT")],
)
def test_files_that_hold_no_conversation(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(BenchError, match=message):
        DATASETS["sharegpt"](path=tmp_path / "c.json").sessions(1, material())


@pytest.mark.parametrize("name", ["custom", "text", "sharegpt", "trace"])
def test_files_that_are_missing_or_cannot_be_read(name: str, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none", tmp_path, tmp_path / "binary"):
        with pytest.raises(BenchError, match="--dataset-path: cannot read"):
            DATASETS[name](path=path).sessions(1, material())
    with pytest.raises(BenchError, match="needs --dataset-path FILE"):
        DATASETS[name]().sessions(1, material())


def test_a_tokenizer_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="--tokenizer: cannot read"):
        load_tokenizer(tmp_path / "none")
