"""Every decoder family computes through pages what transformers computes, and refuses what it does not compute."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from models.causal_lm import CausalLM
from models.checkpoint import Checkpoint
from models.errors import ModelError
from models.loader import load_model
from tests.models.tiny import SHAPE, hf_logits, paged_logits, prompt, randomized, relative_error, saved, tiny_llama

OPT_SHAPE = {
    "vocab_size": 120,
    "hidden_size": 32,
    "word_embed_proj_dim": 32,
    "ffn_dim": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 32}
LLAMA3_FACTORS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}

TEXT = """\
The ferry left the harbour a little after six, when the fog still lay on the water like a folded sheet. Two men in \
yellow coats stood at the rail and argued about the price of herring; a child counted the buoys aloud, lost count at \
seventeen, and began again from one. Nobody minded. The engine made the deck tremble, and the tea in the paper cups \
drew small rings, as if somebody under the table were knocking to be let in.

Engineers who build tide mills learn early that the sea keeps its own calendar. High water comes about fifty minutes \
later every day, so a mill that grinds at noon on Monday grinds at four on Friday, and the miller's sleep follows the \
moon. In 1824 a ledger from the west coast lists 214 sacks of barley ground in March, 190 in April, and a note in red \
ink: "wheel broken, 3 weeks; mason paid 12 shillings." The arithmetic of such places is simple. What the basin holds \
at high water, minus what leaks through the gates, times the height of the fall, is all the work there is to be had.

def tide(hours):
    return 2.1 * math.cos(2 * math.pi * hours / 12.42)

By the time the ferry reached the island the fog had gone and so had the argument. The child, now at ninety-three, \
would not be hurried off the gangway. "Ninety-four," she said, pointing at nothing that anybody else could see. Her \
mother looked for a while, and then, slowly, nodded: far out, beyond the second reef, something red went up and down.\
"""


def _random(model: type[PreTrainedModel], config: type[Any], **shape: Any) -> Callable[[], PreTrainedModel]:
    return lambda: randomized(model(config(**shape)))


def _llama(**changes: Any) -> Callable[[], PreTrainedModel]:
    return _random(LlamaForCausalLM, LlamaConfig, **(SHAPE | changes))


def _opt(**changes: Any) -> Callable[[], PreTrainedModel]:
    return _random(OPTForCausalLM, OPTConfig, **(OPT_SHAPE | changes))


MODELS = {
    "llama": _llama(),
    "llama-mha": _llama(num_key_value_heads=4),
    "llama-mqa": _llama(num_key_value_heads=1),
    "llama-tied": _llama(tie_word_embeddings=True),
    "llama-biases": _llama(attention_bias=True, mlp_bias=True),
    "llama-wide-heads": _llama(head_dim=20, rms_norm_eps=0.1),
    "llama-rope-llama3": _llama(rope_parameters=LLAMA3 | LLAMA3_FACTORS),
    "llama-rope-linear": _llama(rope_parameters=LINEAR),
    "mistral": _random(MistralForCausalLM, MistralConfig, **SHAPE, sliding_window=None),
    "qwen2": _random(Qwen2ForCausalLM, Qwen2Config, **SHAPE),
    "qwen2-tied": _random(Qwen2ForCausalLM, Qwen2Config, **SHAPE, tie_word_embeddings=True),
    "qwen3": _random(Qwen3ForCausalLM, Qwen3Config, **SHAPE, head_dim=24, rms_norm_eps=1e-3),
    "qwen3-biases": _random(Qwen3ForCausalLM, Qwen3Config, **SHAPE, head_dim=8, attention_bias=True),
    "opt": _opt(),
    "opt-350m": _opt(do_layer_norm_before=False, word_embed_proj_dim=16),
    "opt-no-final-norm": _opt(_remove_final_layer_norm=True),
    "opt-no-biases-untied": _opt(enable_bias=False, tie_word_embeddings=False),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_logits_are_those_of_transformers(make: Callable[[], PreTrainedModel], tmp_path: Path) -> None:
    original = make()
    model = load_model(Checkpoint(saved(original, tmp_path)))
    prompts = [prompt(70, seed=1), prompt(1, seed=2), prompt(33, seed=3)]
    for tokens, logits in zip(prompts, paged_logits(model, prompts), strict=True):
        assert logits.dtype == torch.float32
        assert relative_error(logits, hf_logits(original, tokens)) < 1e-5


@pytest.mark.parametrize("name", ["llama", "qwen3", "opt"])
def test_bfloat16_loses_no_more_than_it_does_in_transformers(name: str, tmp_path: Path) -> None:
    original = MODELS[name]()
    folder = saved(original.to(torch.bfloat16), tmp_path)
    model = load_model(Checkpoint(folder), torch.bfloat16)
    tokens = prompt(60)
    exact = hf_logits(original.float(), tokens)
    theirs = relative_error(hf_logits(original.to(torch.bfloat16), tokens), exact)
    (ours,) = paged_logits(model, [tokens], cache="bfloat16")
    assert 0 < relative_error(ours, exact) < min(1.5 * theirs, 0.1)


@pytest.fixture(scope="module")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CausalLM]:
    """One model of each kind of position: rotary and learned."""
    names = ("llama", "opt")
    return {name: load_model(Checkpoint(saved(MODELS[name](), tmp_path_factory.mktemp(name)))) for name in names}


@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("name", ["llama", "opt"])
def test_a_prompt_may_be_read_in_chunks(name: str, size: int, decoders: dict[str, CausalLM]) -> None:
    tokens = prompt(40)
    (whole,) = paged_logits(decoders[name], [tokens])
    chunks = [[min(size, len(tokens) - start)] for start in range(0, len(tokens), size)]
    (parts,) = paged_logits(decoders[name], [tokens], chunks)
    assert relative_error(parts, whole) < 1e-5


@given(
    lengths=st.lists(st.integers(1, 24), min_size=1, max_size=4),
    chunks=st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4), max_size=6),
    page_size=st.sampled_from([1, 4, 16]),
)
def test_sequences_of_a_batch_do_not_touch_each_other(
    lengths: list[int], chunks: list[list[int]], page_size: int, decoders: dict[str, CausalLM]
) -> None:
    prompts = [prompt(length, seed=seed) for seed, length in enumerate(lengths)]
    steps, left = [], lengths
    for wanted in [*chunks, lengths]:
        counts = [min(pair) for pair in zip(wanted, left, strict=False)]
        left = [rest - count for rest, count in zip(left, counts, strict=True)]
        steps.extend([counts] if any(counts) else [])
    mixed = paged_logits(decoders["llama"], prompts, steps, page_size=page_size)
    for tokens, logits in zip(prompts, mixed, strict=True):
        (alone,) = paged_logits(decoders["llama"], [tokens])
        assert relative_error(logits, alone) < 1e-5


@pytest.mark.model
def test_the_default_model_reads_real_text_as_transformers_does(default_model_folder: Path, reference: Any) -> None:
    tokens = reference(TEXT)["input_ids"]
    assert 300 <= len(tokens) <= 600
    expected = hf_logits(AutoModelForCausalLM.from_pretrained(default_model_folder, dtype=torch.float32), tokens)
    model = load_model(Checkpoint(default_model_folder))
    (logits,) = paged_logits(model, [tokens], [[200], [1], [len(tokens) - 201]], page_size=16)
    errors = (logits - expected).abs().amax(dim=1) / expected.abs().amax(dim=1)
    assert errors.max() < 2e-5


def _edited(folder: Path, **changes: Any) -> Path:
    """`folder` with entries of its config.json replaced, or left out where the new value is `...`."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))
    return folder


def test_two_heads_that_differ_are_not_tied_whatever_the_config_says(tmp_path: Path) -> None:
    folder = _edited(saved(tiny_llama(), tmp_path), tie_word_embeddings=True)
    reloaded = LlamaForCausalLM.from_pretrained(folder)
    tokens = prompt(20)
    (logits,) = paged_logits(load_model(Checkpoint(folder)), [tokens])
    assert relative_error(logits, hf_logits(reloaded, tokens)) < 1e-5


def test_an_opt_without_the_outer_name_is_read_too(tmp_path: Path) -> None:
    original = MODELS["opt"]()
    folder = saved(original, tmp_path)
    weights = load_file(folder / "model.safetensors")
    save_file({name.removeprefix("model."): tensor for name, tensor in weights.items()}, folder / "model.safetensors")
    tokens = prompt(20)
    (logits,) = paged_logits(load_model(Checkpoint(folder)), [tokens])
    assert relative_error(logits, hf_logits(original, tokens)) < 1e-5


def test_weights_outlive_the_files_they_came_from(tmp_path: Path) -> None:
    original = tiny_llama(tie_word_embeddings=True)
    folder = saved(original, tmp_path)
    model = load_model(Checkpoint(folder))
    file = folder / "model.safetensors"
    file.write_bytes(bytes(file.stat().st_size))  # in place: what is still mapped turns to zeros
    tokens = prompt(20)
    (logits,) = paged_logits(model, [tokens])
    assert relative_error(logits, hf_logits(original, tokens)) < 1e-5


@pytest.fixture(scope="module")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama, whose config the tests below bend."""
    return saved(tiny_llama(head_dim=8), tmp_path_factory.mktemp("llama"))


REFUSED = {
    "no-type": ({"model_type": ...}, "of type None are not supported; these are: llama, mistral, opt, qwen2, qwen3"),
    "unknown-type": ({"model_type": "mamba"}, "of type 'mamba' are not supported; these are: llama"),
    "module-path": ({"model_type": "llama.build"}, "not supported; these are"),
    "yarn": ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "RoPE scaling of type 'yarn'"),
    "old-dynamic": ({"rope_parameters": ..., "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "type 'dynamic'"),
    "partial-rotary": ({"partial_rotary_factor": 0.5}, "partial rotary"),
    "partial-rotary-nested": (
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}},
        "partial rotary",
    ),
    "gelu": ({"hidden_act": "gelu"}, r"activation 'gelu' is not supported for this model type \(silu is\)"),
    "gelu-qwen": ({"hidden_act": "gelu_pytorch_tanh", "model_type": "qwen3"}, "activation 'gelu_pytorch_tanh'"),
    "gelu-opt": ({"activation_function": "gelu", "model_type": "opt"}, r"activation 'gelu'.*\(relu is\)"),
    "window": ({"model_type": "mistral", "sliding_window": 64}, "sliding window of 64 tokens.*use a variant without"),
    "unsaid-window": ({"model_type": "mistral"}, "sliding window of 4096 tokens"),
    "qwen-window": (
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 32},
        "sliding window of 32 tokens",
    ),
    "quantised": ({"quantization_config": {"quant_method": "fp8"}}, "quantised safetensors weights"),
    "no-layers": ({"num_hidden_layers": ...}, "config.json has no 'num_hidden_layers'"),
    "null-size": ({"hidden_size": None}, "config.json has no 'hidden_size'"),
    "zero-heads": ({"num_attention_heads": 0}, "'num_attention_heads' must be a positive whole number, but it is 0"),
    "listed-heads": ({"num_key_value_heads": [2, 4]}, r"'num_key_value_heads' must be .* but it is \[2, 4\]"),
    "uneven-groups": ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 KV heads evenly"),
    "more-layers-than-weights": ({"num_hidden_layers": 4}, r"no tensor 'model\.layers\.3\."),
    "another-family": ({"model_type": "opt"}, r"no tensor 'decoder\.layers\.0\..*incomplete, or of another"),
}


@pytest.mark.parametrize(("changes", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_computed_is_refused(
    changes: dict[str, Any], sentence: str, llama_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").symlink_to(llama_folder / "model.safetensors")
    (tmp_path / "config.json").write_bytes((llama_folder / "config.json").read_bytes())
    with pytest.raises(ModelError, match=sentence):
        load_model(Checkpoint(_edited(tmp_path, **changes)))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"hidden_act": "swish"}, id="other-name-of-silu"),
        pytest.param({"hidden_act": ..., "rms_norm_eps": 1e-6}, id="activation-unsaid"),
        pytest.param({"partial_rotary_factor": None, "quantization_config": None}, id="nulls"),
        pytest.param({"head_dim": None}, id="head-dim-null"),
        pytest.param({"model_type": "mistral", "sliding_window": None}, id="no-window"),
        pytest.param({"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 32}, id="window-unused"),
    ],
)
def test_what_says_the_same_in_other_words_is_accepted(
    changes: dict[str, Any], llama_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").symlink_to(llama_folder / "model.safetensors")
    (tmp_path / "config.json").write_bytes((llama_folder / "config.json").read_bytes())
    tokens = prompt(10)
    (expected,) = paged_logits(load_model(Checkpoint(llama_folder)), [tokens])
    (logits,) = paged_logits(load_model(Checkpoint(_edited(tmp_path, **changes))), [tokens])
    assert torch.equal(logits, expected)


def test_a_qwen3_that_does_not_say_how_wide_its_heads_are_has_heads_of_128(tmp_path: Path) -> None:
    original = _random(Qwen3ForCausalLM, Qwen3Config, **SHAPE)()
    assert original.config.head_dim == 128
    tokens = prompt(10)
    (logits,) = paged_logits(load_model(Checkpoint(_edited(saved(original, tmp_path), head_dim=...))), [tokens])
    assert relative_error(logits, hf_logits(original, tokens)) < 1e-5
