"""Small GGUF files in llama.cpp's layout, made from random Hugging Face models, and small tokenizers of every kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from transformers import AutoTokenizer, PreTrainedModel

from models.gguf_tokenizer import TokenType
from models.tokenizer import Tokenizer

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "1 2"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PADDING = 6


def _byte_level_vocabulary(writer: GGUFWriter) -> None:
    merged = [merge.replace(" ", "") for merge in MERGES]
    tokens = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *merged, "<think>"]
    types = [TokenType.CONTROL] * len(SPECIALS) + [TokenType.NORMAL] * (256 + len(merged)) + [TokenType.USER_DEFINED]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*tokens, *(f"[PAD{index}]" for index in range(PADDING))])
    writer.add_token_types([*types, *[TokenType.UNUSED] * PADDING])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template(CHATML)


def _metadata(writer: GGUFWriter, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])


def _tensor_name(config: Any, hf_name: str) -> str:
    architecture = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[config.model_type]
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    found = names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
    assert found is not None, hf_name
    return found


def _pair_rows(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """llama.cpp's order: row i and row i + half of a head stand next to each other."""
    per_head = values.reshape(heads, -1, *values.shape[1:])
    half = per_head.shape[1] // 2
    return np.stack([per_head[:, :half], per_head[:, half:]], axis=2).reshape(values.shape)


def _llama_cpp_rows(config: Any, name: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if config.model_type == "llama" and "q_proj" in name:
        return _pair_rows(values, config.num_attention_heads)
    if config.model_type == "llama" and "k_proj" in name:
        return _pair_rows(values, config.num_key_value_heads)
    return values


WriteGGUF = Callable[..., Path]


@pytest.fixture
def write_gguf(tmp_path: Path) -> WriteGGUF:
    """`write_gguf(model, stored_as=..., vocabulary=..., extra=...)`: the file's path."""

    def write(
        model: PreTrainedModel,
        *,
        stored_as: GGMLQuantizationType = GGMLQuantizationType.F32,
        vocabulary: Callable[[GGUFWriter], None] = _byte_level_vocabulary,
        extra: Callable[[GGUFWriter], None] = lambda writer: None,
        name: str = "tiny.gguf",
    ) -> Path:
        writer = GGUFWriter(tmp_path / name, model.config.model_type)
        _metadata(writer, model.config)
        vocabulary(writer)
        extra(writer)
        tied = model.config.tie_word_embeddings
        for hf_name, tensor in model.state_dict().items():
            if tied and hf_name == "lm_head.weight":
                continue
            values = _llama_cpp_rows(model.config, hf_name, tensor.to(torch.float32).numpy())
            kind = stored_as if values.ndim == 2 else GGMLQuantizationType.F32
            writer.add_tensor(_tensor_name(model.config, hf_name), gguf.quantize(values, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return tmp_path / name

    return write


@pytest.fixture(scope="session")
def tokenizer(default_model_folder: Path) -> Tokenizer:
    """The default model's."""
    return Tokenizer.from_folder(default_model_folder)


@pytest.fixture(scope="session")
def reference(default_model_folder: Path) -> Any:
    """transformers' own tokenizer of the default model."""
    return AutoTokenizer.from_pretrained(default_model_folder)


def _byte_level() -> Backend:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(BPE({character: index for index, character in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.add_tokens([AddedToken("<think>"), AddedToken("<|user|>"), AddedToken("éé")])
    return backend


def _sentencepiece(prefix: bool) -> Backend:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "h", "i", "▁h", "é"]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    backend = Backend(BPE(vocabulary, [("▁", "h")], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    spaces = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend


def _metaspace() -> Backend:
    backend = _sentencepiece(prefix=True)
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Metaspace(prepend_scheme="first"), decoders.ByteFallback(), decoders.Fuse()]
    )
    return backend


_BACKENDS: Mapping[str, Callable[[], Backend]] = {
    "byte-level": _byte_level,
    "sentencepiece": partial(_sentencepiece, prefix=True),
    "sentencepiece-no-prefix": partial(_sentencepiece, prefix=False),
    "metaspace": _metaspace,
}

SaveTokenizer = Callable[..., Path]


@pytest.fixture(scope="session")
def byte_level() -> Callable[[], Backend]:
    """Makes a byte-level vocabulary without merges, with the added tokens <s>, </s>, <think>, <|user|> and éé."""
    return _byte_level


@pytest.fixture(scope="session")
def save_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> SaveTokenizer:
    """`save_tokenizer(backend, **tokenizer_config)`: the folder it now is in."""

    def save(backend: Backend, **config: Any) -> Path:
        folder = tmp_path_factory.mktemp("tokenizer")
        described = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
        backend.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps(described | config))
        return folder

    return save


@pytest.fixture(scope="module", params=_BACKENDS)
def small(request: pytest.FixtureRequest, save_tokenizer: SaveTokenizer) -> Tokenizer:
    """A small tokenizer of every kind that models use."""
    return Tokenizer.from_folder(save_tokenizer(_BACKENDS[request.param]()))
