"""The tokenizer inside a GGUF file, rebuilt with the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, processors
from tokenizers.models import BPE

from models.errors import ModelError
from models.gguf_file import GGUFFile
from models.gguf_pretokenizers import PRE_TOKENIZERS

_SPACE = "\u2581"
_NAMED_TOKENS: Mapping[str, str] = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_END_IDS = ("eos_token_id", "eot_token_id", "eom_token_id")


class TokenType(IntEnum):
    """llama.cpp's kinds of vocabulary entries."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """The entries of a file, in id order, without the unused ones that pad the end."""

    tokens: Sequence[str]
    types: Sequence[int]

    @classmethod
    def read(cls, file: GGUFFile) -> Vocabulary:
        tokens = file.require("tokenizer.ggml.tokens")
        types = file.get("tokenizer.ggml.token_type") or [TokenType.NORMAL] * len(tokens)
        used = len(tokens)
        while used and types[used - 1] == TokenType.UNUSED:
            used -= 1
        return cls(tokens[:used], types[:used])

    @property
    def ids(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self.tokens)}

    def added(self) -> list[AddedToken]:
        """Tokens that are matched in the text as a whole. Control tokens are special: they can be left out of text."""
        return [
            AddedToken(token, normalized=False, special=kind == TokenType.CONTROL)
            for token, kind in zip(self.tokens, self.types, strict=True)
            if kind in (TokenType.CONTROL, TokenType.USER_DEFINED)
        ]


def convert_tokenizer(file: GGUFFile) -> Tokenizer:
    """A tokenizer that gives the file's ids. Raises ModelError for a kind of vocabulary that is not known here."""
    kind = file.require("tokenizer.ggml.model")
    if kind not in _BUILDERS:
        raise ModelError(f"{file.path}: a tokenizer of kind {kind!r} is not supported, only {', '.join(_BUILDERS)}")
    vocabulary = Vocabulary.read(file)
    tokenizer, adds_bos = _BUILDERS[kind](file, vocabulary)
    tokenizer.add_tokens(vocabulary.added())
    before = _named_token(file, "bos_token_id") if file.get("tokenizer.ggml.add_bos_token", adds_bos) else None
    after = _named_token(file, "eos_token_id") if file.get("tokenizer.ggml.add_eos_token", False) else None
    if before or after:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[piece for piece in (before, "$A", after) if piece],
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in (before, after) if token],
        )
    return tokenizer


def tokenizer_config(file: GGUFFile) -> dict[str, Any]:
    """What `tokenizer_config.json` says beside the vocabulary: named tokens and the chat template."""
    named = {name: _named_token(file, key) for name, key in _NAMED_TOKENS.items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": file.require_hparam("context_length"),
        **{name: token for name, token in named.items() if token is not None},
        **({"chat_template": template} if (template := file.get("tokenizer.chat_template")) else {}),
    }


def generation_config(file: GGUFFile) -> dict[str, Any]:
    """`generation_config.json`: every id that ends an answer."""
    ends = [file.get(f"tokenizer.ggml.{key}") for key in _END_IDS]
    config = {
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(dict.fromkeys(end for end in ends if end is not None)),
        "pad_token_id": file.get("tokenizer.ggml.padding_token_id"),
    }
    return {key: value for key, value in config.items() if value is not None}


def _named_token(file: GGUFFile, key: str) -> str | None:
    index = file.get(f"tokenizer.ggml.{key}")
    tokens = file.require("tokenizer.ggml.tokens")
    return tokens[index] if index is not None and index < len(tokens) else None


def _byte_level(file: GGUFFile, vocabulary: Vocabulary) -> tuple[Tokenizer, bool]:
    name = file.require("tokenizer.ggml.pre")
    if name not in PRE_TOKENIZERS:
        raise ModelError(f"{file.path}: the pre-tokenizer {name!r} is not known; known are {', '.join(PRE_TOKENIZERS)}")
    rules = PRE_TOKENIZERS[name]
    merges = _read_merges(file.require("tokenizer.ggml.merges"))
    tokenizer = Tokenizer(BPE(vocabulary.ids, merges, ignore_merges=rules.whole_words))
    if (normalizer := rules.normalizer()) is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = rules.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, rules.adds_bos


def _sentencepiece(file: GGUFFile, vocabulary: Vocabulary) -> tuple[Tokenizer, bool]:
    listed = file.get("tokenizer.ggml.merges")
    merges = _read_merges(listed) if listed else _merges_by_score(vocabulary, file.require("tokenizer.ggml.scores"))
    unknown = _named_token(file, "unknown_token_id")
    tokenizer = Tokenizer(BPE(vocabulary.ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", _SPACE)
    decode = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if file.get("tokenizer.ggml.add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        tokenizer.decoder = decoders.Sequence([*decode, decoders.Strip(" ", 1, 0)])
    else:
        tokenizer.normalizer = spaces
        tokenizer.decoder = decoders.Sequence(decode)
    return tokenizer, True


_BUILDERS: Mapping[str, Callable[[GGUFFile, Vocabulary], tuple[Tokenizer, bool]]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
}


def _read_merges(lines: Sequence[str]) -> list[tuple[str, str]]:
    return [(left, right) for left, _, right in (line.partition(" ") for line in lines)]


def _merges_by_score(vocabulary: Vocabulary, scores: Sequence[float]) -> list[tuple[str, str]]:
    """SentencePiece keeps no merges: any two pieces that spell a third may join, the best-scored result first."""
    pieces = {
        token: index
        for index, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        if kind == TokenType.NORMAL
    }
    ranked = []
    for piece, index in pieces.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in pieces and right in pieces:
                ranked.append((-scores[index], pieces[left], pieces[right], left, right))
    return [(left, right) for *_, left, right in sorted(ranked)]
