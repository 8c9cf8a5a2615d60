"""Ids and bytes of text agree with transformers, for the default model and for every kind of vocabulary."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders
from tokenizers.models import WordPiece
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from models.errors import ModelError
from models.tokenizer import Tokenizer

TEXTS = [
    "",
    " ",
    "Hello, world!  Two spaces,\ttabs\t\tand\n\nnewlines \r\n at the end \n",
    "In 1984 there were 1,234,567 of them: 3.14159 ½ ² Ⅷ ٣",
    "Žluťoučký kůň příšerně úpěl ďábelské ódy.",
    "日本語のテキストと漢字、한국어, हिन्दी, ไทย, עברית",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇨🇿 👍🏽 e\u0301 \u00a0 \u200b \ufeff",
    "def f(x):\n    return {'a': [x for _ in range(3)]}  # <b>&amp;</b>",
    "It's what they'd say; WE'RE sure \u2019s",
    "<|im_start|>user\nhi<|im_end|> <|im_ end|>",
    "\x00\x01\x7f\x80 \U0010ffff \ue000",
]
MISSING = "\x04\x06\x13\x14\x16\x1d"  # bytes without a token in the default model; transformers drops them as well

SaveTokenizer = Callable[..., Path]


@pytest.mark.model
class TestDefaultModel:
    @pytest.mark.parametrize("text", TEXTS)
    def test_ids_are_those_of_transformers(self, text: str, tokenizer: Tokenizer, reference: Any) -> None:
        ids = tokenizer.encode(text)
        assert ids == reference.encode(text)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text

    def test_digits_stand_alone_and_spaces_lead(self, tokenizer: Tokenizer) -> None:
        pieces = [tokenizer.token_string(token) for token in tokenizer.encode("the year 1984")]
        assert pieces == ["the", "Ġyear", "Ġ", "1", "9", "8", "4"]

    @given(text=st.text(st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs"], exclude_characters=MISSING)))
    def test_bytes_of_tokens_join_to_the_text(self, text: str, tokenizer: Tokenizer) -> None:
        joined = b"".join(tokenizer.token_bytes(token) for token in tokenizer.encode(text))
        assert joined == text.encode()

    @given(ids=st.lists(st.integers(0, 49151)), skip=st.booleans())
    def test_any_ids_decode_as_in_transformers(
        self, ids: list[int], skip: bool, tokenizer: Tokenizer, reference: Any
    ) -> None:
        expected = reference.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        assert tokenizer.decode(ids, skip_special_tokens=skip) == expected

    def test_facts(self, tokenizer: Tokenizer) -> None:
        assert tokenizer.vocab_size == 49152
        assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
        assert tokenizer.special_ids == frozenset(range(17))
        assert not tokenizer.strips_leading_space
        assert tokenizer.token_bytes(2) == b"<|im_end|>"
        assert tokenizer.chat_template is not None

    def test_a_lone_surrogate_is_a_replacement_character(self, tokenizer: Tokenizer) -> None:
        assert tokenizer.encode("a\ud800b") == tokenizer.encode("a\ufffdb")
        assert tokenizer.encode("\ud83c\udf89") == tokenizer.encode("🎉")

    def test_many_threads_may_encode(self, tokenizer: Tokenizer) -> None:
        expected = [tokenizer.encode(text) for text in TEXTS]
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(tokenizer.encode, TEXTS * 20)) == expected * 20


@given(text=st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"])))
def test_every_kind_of_vocabulary_gives_its_bytes_back(text: str, small: Tokenizer) -> None:
    ids = small.encode(text)
    joined = b"".join(small.token_bytes(token) for token in ids)
    prefix = b" " if small.strips_leading_space and text else b""
    assert joined in (prefix + text.encode(), text.encode()), "Metaspace adds no second space in front of one"
    assert small.decode(ids) == joined.decode().removeprefix(" " if small.strips_leading_space else "")


@given(text=st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"])))
def test_every_kind_of_vocabulary_decodes_as_its_library_does(text: str, small: Tokenizer) -> None:
    ids = small.encode(text)
    backend: Backend = small._backend
    assert small.decode(ids) == backend.decode(ids)


def test_added_tokens_give_their_spelling(byte_level: Callable[[], Backend], save_tokenizer: SaveTokenizer) -> None:
    tokenizer = Tokenizer.from_folder(save_tokenizer(byte_level()))
    text = "a<think>éé<s>"
    assert b"".join(tokenizer.token_bytes(token) for token in tokenizer.encode(text)) == text.encode()
    assert tokenizer.decode(tokenizer.encode(text)) == "a<think>éé"


def test_truncation_saved_with_a_tokenizer_is_not_applied(
    byte_level: Callable[[], Backend], save_tokenizer: SaveTokenizer
) -> None:
    backend = byte_level()
    backend.enable_truncation(3)
    backend.enable_padding(length=8)
    assert len(Tokenizer.from_folder(save_tokenizer(backend)).encode("hello")) == 5


def test_other_tokenizer_classes_are_read_through_transformers(
    byte_level: Callable[[], Backend], save_tokenizer: SaveTokenizer
) -> None:
    folder = save_tokenizer(byte_level(), tokenizer_class="GPT2Tokenizer")
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    text = "hi é</s>"
    assert Tokenizer.from_folder(folder).encode(text) == AutoTokenizer.from_pretrained(folder).encode(text)


def test_unreadable_and_unknown_tokenizers_are_refused(
    tmp_path: Path, byte_level: Callable[[], Backend], save_tokenizer: SaveTokenizer
) -> None:
    with pytest.raises(ModelError, match="no tokenizer that can be read"):
        Tokenizer.from_folder(tmp_path)
    folder = save_tokenizer(byte_level())
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="no tokenizer that can be read"):
        Tokenizer.from_folder(folder)
    words = Backend(WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    words.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match="decodes by WordPiece"):
        Tokenizer(PreTrainedTokenizerFast(tokenizer_object=words))
