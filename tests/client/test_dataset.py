"""Prompts have the lengths that were asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.dataset import Lengths, load_tokenizer, make_prompts, random_ids, random_words, text_slices
from client.errors import BenchError


@given(st.integers(1, 300), st.integers(1, 300), st.floats(0, 0.99), st.integers(2, 500), st.integers(0, 9))
def test_random_ids(size: int, output: int, spread: float, vocab: int, seed: int) -> None:
    lengths = Lengths(size, output, spread)
    for prompt in make_prompts(4, lengths, random_ids(vocab), seed):
        assert isinstance(prompt.content, list)
        assert len(prompt.content) == prompt.input_len
        assert 1 <= prompt.input_len <= lengths.longest_input()
        assert abs(prompt.input_len - size) <= size * spread + 0.5
        assert abs(prompt.output_len - output) <= output * spread + 0.5
        assert all(vocab // 10 <= token < vocab for token in prompt.content)


def test_prompts_differ_and_the_seed_decides() -> None:
    def contents(seed: int) -> list[object]:
        return [prompt.content for prompt in make_prompts(3, Lengths(20, 1), random_ids(1000), seed)]

    assert contents(1) == contents(1)
    assert contents(1) != contents(2)
    assert contents(1)[0] != contents(1)[1]


def test_random_words() -> None:
    (prompt,) = make_prompts(1, Lengths(50, 1), random_words(None), seed=0)
    assert isinstance(prompt.content, str)
    assert len(prompt.content.split()) == 50


def test_words_are_cut_to_exact_length(tmp_path: Path, tokenizer: Path) -> None:
    (prompt,) = make_prompts(1, Lengths(50, 1), random_words(load_tokenizer(tokenizer)), seed=0)
    assert isinstance(prompt.content, str)
    assert len(prompt.content.split()) == 50


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text(" ".join(f"w{i:03d}" for i in range(400)), encoding="utf-8")
    return path


def test_text_slices_without_a_tokenizer_are_estimates(book: Path) -> None:
    lengths = Lengths(30, 1)
    for prompt in make_prompts(5, lengths, text_slices(book, lengths, None, as_ids=True), seed=0):
        assert isinstance(prompt.content, str)
        assert len(prompt.content) == 120
        assert prompt.content in book.read_text()


def test_text_slices_with_a_tokenizer_are_exact(book: Path, tokenizer: Path) -> None:
    lengths = Lengths(30, 1)
    loaded = load_tokenizer(tokenizer / "tokenizer.json")
    texts = make_prompts(5, lengths, text_slices(book, lengths, loaded, as_ids=False), seed=0)
    ids = make_prompts(5, lengths, text_slices(book, lengths, loaded, as_ids=True), seed=0)
    assert all(isinstance(prompt.content, str) and len(prompt.content.split()) == 30 for prompt in texts)
    assert all(prompt.content == [0] * 30 for prompt in ids)
    assert len({str(prompt.content) for prompt in texts}) == 5


def test_the_whole_file_may_be_one_prompt(book: Path, tokenizer: Path) -> None:
    lengths = Lengths(400, 1)
    (prompt,) = make_prompts(1, lengths, text_slices(book, lengths, load_tokenizer(tokenizer), as_ids=False), seed=0)
    assert prompt.content == book.read_text()


def test_a_file_that_is_too_short_says_so(book: Path) -> None:
    with pytest.raises(BenchError, match=r"about 499 tokens, prompts may need 500: .*--random-input-len"):
        text_slices(book, Lengths(400, 1, spread=0.25), None, as_ids=False)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none", tmp_path, binary):
        with pytest.raises(BenchError, match="--dataset-path: cannot read"):
            text_slices(path, Lengths(1, 1), None, as_ids=False)
        with pytest.raises(BenchError, match="--tokenizer: cannot read"):
            load_tokenizer(path)
