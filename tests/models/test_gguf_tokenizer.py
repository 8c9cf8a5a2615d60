"""Tokenizers rebuilt from GGUF metadata cut and merge text as their originals do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from gguf import GGUFWriter
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from models.errors import ModelError
from models.gguf_file import GGUFFile
from models.gguf_pretokenizers import PRE_TOKENIZERS
from models.gguf_tokenizer import TokenType, convert_tokenizer, generation_config, tokenizer_config

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
CONTROL = ["<unk>", "<s>", "</s>"]
SCORED = [
    "▁t", "he", "▁a", "in", "▁the", "re", "on", "er", "▁s", "at", "▁w", "nd", "▁in", "ing", "▁and", "▁there", "▁▁",
]  # fmt: skip
PIECES = [*CONTROL, *BYTES, *SCORED, *"▁tehainrosdwg,é"]
SCORES = {piece: -float(rank) for rank, piece in enumerate(PIECES)}

WriteVocabulary = Callable[[Callable[[GGUFWriter], None]], GGUFFile]


@pytest.fixture(scope="module")
def read_back(tmp_path_factory: pytest.TempPathFactory) -> WriteVocabulary:
    """A GGUF file that holds nothing but what the given function adds to it."""

    def write(add: Callable[[GGUFWriter], None]) -> GGUFFile:
        path = tmp_path_factory.mktemp("vocabulary") / "vocabulary.gguf"
        writer = GGUFWriter(path, "llama")
        writer.add_context_length(64)
        add(writer)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return GGUFFile(path)

    return write


def _sentencepiece(writer: GGUFWriter) -> None:
    types = {"<unk>": TokenType.UNKNOWN, "<s>": TokenType.CONTROL, "</s>": TokenType.CONTROL}
    writer.add_tokenizer_model("llama")
    writer.add_token_list(PIECES)
    writer.add_token_scores([SCORES[piece] for piece in PIECES])
    writer.add_token_types(
        [types.get(piece, TokenType.BYTE if piece in BYTES else TokenType.NORMAL) for piece in PIECES]
    )
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _by_the_book(text: str) -> list[str]:
    """SentencePiece's rule: join the neighbours with the best-scored result, the leftmost first, until none is left."""
    mergeable = set(PIECES) - set(CONTROL) - set(BYTES)
    symbols = list(("▁" + text).replace(" ", "▁"))
    while True:
        joined = {index: symbols[index] + symbols[index + 1] for index in range(len(symbols) - 1)}
        candidates = [index for index in joined if joined[index] in mergeable]
        if not candidates:
            break
        best = max(candidates, key=lambda index: (SCORES[joined[index]], -index))
        symbols[best : best + 2] = [joined[best]]
    return [
        token
        for symbol in symbols
        for token in ([symbol] if symbol in mergeable else [f"<0x{byte:02X}>" for byte in symbol.encode()])
    ]


@pytest.fixture(scope="module")
def sentencepiece(read_back: WriteVocabulary) -> Callable[[str], list[str]]:
    tokenizer = convert_tokenizer(read_back(_sentencepiece))
    return lambda text: tokenizer.encode(text).tokens


@given(text=st.text("tehainrosdwg,é 漢", min_size=1, max_size=40))
def test_sentencepiece_merges_by_score(text: str, sentencepiece: Callable[[str], list[str]]) -> None:
    assert sentencepiece(text) == ["<s>", *_by_the_book(text)]


def test_sentencepiece_adds_bos_and_a_space_unless_told_otherwise(
    read_back: WriteVocabulary, sentencepiece: Callable[[str], list[str]]
) -> None:
    def plain(writer: GGUFWriter) -> None:
        _sentencepiece(writer)
        writer.add_add_bos_token(False)
        writer.add_add_eos_token(True)
        writer.add_add_space_prefix(False)

    tokenizer = convert_tokenizer(read_back(plain))
    assert tokenizer.encode("the").tokens == ["t", "he", "</s>"]
    assert tokenizer.decode(tokenizer.encode(" the").ids) == " the"
    assert sentencepiece("the") == ["<s>", "▁the"]


def _gpt2(writer: GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "<s>"])
    writer.add_bos_token_id(257)
    writer.add_token_merges(["a b"])


def _byte_level(pre: str) -> Callable[[GGUFWriter], None]:
    def add(writer: GGUFWriter) -> None:
        _gpt2(writer)
        writer.add_tokenizer_pre(pre)
        writer.add_token_types([TokenType.NORMAL] * 257 + [TokenType.CONTROL])

    return add


@pytest.mark.parametrize(("pre", "adds_bos"), [("llama-bpe", True), ("tekken", True), ("qwen2", False)])
def test_byte_level_vocabularies_add_bos_as_their_family_does(
    pre: str, adds_bos: bool, read_back: WriteVocabulary
) -> None:
    tokens = convert_tokenizer(read_back(_byte_level(pre))).encode("ab").tokens
    assert tokens == ["<s>", "ab"] if adds_bos else ["ab"]


def test_nfc_is_applied_where_the_original_does(read_back: WriteVocabulary) -> None:
    composed = {
        pre: convert_tokenizer(read_back(_byte_level(pre))).encode("e\u0301").tokens == ["Ã", "©"]
        for pre in ("qwen2", "llama-bpe", "smollm")
    }
    assert composed == {"qwen2": True, "llama-bpe": False, "smollm": False}


def test_a_file_without_a_pre_tokenizer_is_refused(read_back: WriteVocabulary) -> None:
    with pytest.raises(ModelError, match=r"no 'tokenizer\.ggml\.pre'"):
        convert_tokenizer(read_back(_gpt2))


def test_ends_and_names_come_from_the_metadata(read_back: WriteVocabulary) -> None:
    def ends(writer: GGUFWriter) -> None:
        _sentencepiece(writer)
        writer.add_eot_token_id(1)
        writer.add_chat_template("{{ messages }}")

    file = read_back(ends)
    assert generation_config(file) == {"bos_token_id": 1, "eos_token_id": [2, 1]}
    config = tokenizer_config(file)
    assert config["chat_template"] == "{{ messages }}"
    assert (config["bos_token"], config["eos_token"], config["unk_token"]) == ("<s>", "</s>", "<unk>")
    assert "pad_token" not in config


GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
BYTES_ONLY = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
ORIGINALS = {
    "gpt-2": GPT2,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2]),
    "qwen2": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), "isolated"), BYTES_ONLY]),
}


@pytest.mark.parametrize("name", ORIGINALS)
@given(text=st.text() | st.text("a1½ \n\t'sS.!é漢"))
def test_text_is_cut_as_the_originals_cut_it(name: str, text: str) -> None:
    cut = PRE_TOKENIZERS[name].pre_tokenizer().pre_tokenize_str(text)
    assert [piece for piece, _ in cut] == [piece for piece, _ in ORIGINALS[name].pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("llama-bpe", ["We", "'RE", " in", " ", "123", "45", "!\n\n", " ok"]),
        ("tekken", ["We", "'RE", " in", " ", "1", "2", "3", "4", "5", "!\n\n", " ok"]),
        ("default", ["We", "'", "RE", " in", " ", "123", "45", "!", "\n\n", " ok"]),
    ],
)
def test_families_differ_in_digits_and_punctuation(name: str, pieces: list[str]) -> None:
    cut = PRE_TOKENIZERS[name].pre_tokenizer().pre_tokenize_str("We'RE in 12345!\n\n ok")
    encoded = [BYTES_ONLY.pre_tokenize_str(piece)[0][0] for piece in pieces]
    assert [piece for piece, _ in cut] == encoded
