"""What calibrating measures against transformers' own attention, and files that hold the result."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import models.calibration_file
from models.calibration_file import calibration_path, find_calibration, read_calibration, write_calibration
from models.calibrator import REQUEST, SHARES, Calibrator, passage_length, passages
from models.checkpoint import Checkpoint
from models.errors import ModelError
from models.essays import calibration_essays
from models.loader import load_model
from models.repetition import attended
from models.tokenizer import Tokenizer
from paged_kv.calibration import Calibration
from paged_kv.lanes import LaneProfile
from paged_kv.scoring import LinearScorer
from tests.models.tiny import SHAPE, prompt, randomized, saved, tiny_llama

REQUESTED = prompt(5, seed=99)
OPT_SHAPE = {key: value for key, value in SHAPE.items() if key not in ("intermediate_size", "num_key_value_heads")}
EAGER = {"attn_implementation": "eager"}
MODELS: Mapping[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: randomized(LlamaForCausalLM(LlamaConfig(**SHAPE, **EAGER))),
    "llama-mha": lambda: randomized(LlamaForCausalLM(LlamaConfig(**(SHAPE | {"num_key_value_heads": 4}), **EAGER))),
    "qwen3": lambda: randomized(Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=8, **EAGER))),
    "opt": lambda: randomized(
        OPTForCausalLM(OPTConfig(**OPT_SHAPE, ffn_dim=64, word_embed_proj_dim=32, dropout=0.0, **EAGER))
    ),
}


def weights_given(model: PreTrainedModel, tokens: Sequence[int], kv_heads: int) -> Tensor:
    """transformers' attention of one text: [layers, kv_heads, heads of each, queries, rows]."""
    with torch.inference_mode():
        found = model(torch.tensor([tokens]), output_attentions=True).attentions
    return torch.cat(found).unflatten(1, (kv_heads, -1))


def projected(model: PreTrainedModel, tokens: Sequence[int]) -> Tensor:
    """What transformers' q, k and v projections give, side by side: [layers, tokens, features]."""
    outputs: dict[str, list[Tensor]] = {name: [] for name in ("q_proj", "k_proj", "v_proj")}

    def watch(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda module, inputs, output: outputs[name].append(output[0])

    modules = [(name.rpartition(".")[2], module) for name, module in model.named_modules()]
    hooks = [module.register_forward_hook(watch(name)) for name, module in modules if name in outputs]
    with torch.inference_mode():
        model(torch.tensor([tokens]))
    for hook in hooks:
        hook.remove()
    return torch.cat([torch.stack(outputs[name]) for name in outputs], dim=2)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("length", "block"), [(48, 16), (41, 16), (12, 16), (20, 1)])
def test_attended_is_what_transformers_attends_to(name: str, length: int, block: int, tmp_path: Path) -> None:
    original = MODELS[name]()
    model = load_model(Checkpoint(saved(original, tmp_path)))
    kv_heads = model.config.num_kv_heads
    passage = prompt(length, seed=1)
    found = attended(model, passage, REQUESTED, block)

    whole = weights_given(original, [*passage, *REQUESTED, *passage], kv_heads)
    recall = whole[..., length:, :length].amax(dim=(2, 3))
    torch.testing.assert_close(found.recall, recall, rtol=1e-4, atol=1e-6)

    read = weights_given(original, passage, kv_heads).mean(dim=2)
    for row in range(length):
        first = (row // block + 1) * block  # of the queries in later blocks
        expected = read[:, :, first:, row].mean(dim=2) if first < length else torch.full(read.shape[:2], torch.nan)
        torch.testing.assert_close(found.flow[:, :, row], expected, rtol=1e-4, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", ["llama", "opt"])
def test_features_are_what_attention_takes_in(name: str, tmp_path: Path) -> None:
    original = MODELS[name]()
    passage = prompt(33, seed=2)
    found = attended(load_model(Checkpoint(saved(original, tmp_path))), passage, REQUESTED, 16)
    torch.testing.assert_close(found.features, projected(original, passage), rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A tiny model."""
    return Checkpoint(saved(tiny_llama(), tmp_path_factory.mktemp("model")))


PASSAGES = [prompt(96, seed=seed) for seed in range(3)]


def calibrator(checkpoint: Checkpoint, *read: Sequence[int]) -> Calibrator:
    """One that has read `read`."""
    made = Calibrator(load_model(checkpoint), REQUESTED, block=16)
    for passage in read:
        made.add(passage)
    return made


def tensors(calibration: Calibration) -> tuple[Tensor, ...]:
    """All numbers of a calibration."""
    scorer, profile = calibration.scorer, calibration.profile
    return scorer.weights, scorer.bias, profile.shares, profile.rows


def test_scores_predict_what_was_measured(checkpoint: Checkpoint) -> None:
    """With nearly as many features as rows there is little that cannot be fitted, if nothing is mixed up on the way."""
    scorer = calibrator(checkpoint, PASSAGES[0]).fit().scorer
    found = attended(load_model(checkpoint), PASSAGES[0], REQUESTED, 16)
    rows = slice(4, 80)
    for layer, features in enumerate(found.features):
        scores = scorer.scores(scorer.state(layer, features)).permute(2, 1, 0)
        measured = torch.stack((found.recall[layer], found.flow[layer])).add(1e-4).log()
        for predicted, true in zip(scores[..., rows].flatten(0, 1), measured[..., rows].flatten(0, 1), strict=True):
            assert torch.corrcoef(torch.stack((predicted, true)))[0, 1] > 0.7


def test_the_profile_spreads_what_is_kept(checkpoint: Checkpoint) -> None:
    profile = calibrator(checkpoint, *PASSAGES).fit().profile
    assert profile.rows.shape == (len(SHARES), checkpoint.config["num_hidden_layers"] * 2)
    torch.testing.assert_close(profile.shares, profile.rows.mean(dim=1))
    protected = 20 / 80  # sinks and recent rows
    within = torch.tensor(SHARES) > protected
    assert (profile.rows[within] >= protected - 1e-6).all()
    assert (profile.rows <= 1).all()
    torch.testing.assert_close(profile.shares[within], torch.tensor(SHARES)[within], rtol=0, atol=1 / 80)
    assert (profile.rows[within].amax(dim=1) > profile.rows[within].amin(dim=1)).all()


def test_going_on_gives_exactly_what_one_run_gives(checkpoint: Checkpoint, tmp_path: Path) -> None:
    calibrator(checkpoint, *PASSAGES[:2]).save(tmp_path / "partial", "task")
    second = calibrator(checkpoint)
    assert second.resume(tmp_path / "partial", "task")
    assert second.count == 2
    second.add(PASSAGES[2])
    whole = calibrator(checkpoint, *PASSAGES).fit()
    assert all(torch.equal(a, b) for a, b in zip(tensors(second.fit()), tensors(whole), strict=True))
    assert [file.name for file in tmp_path.iterdir()] == ["partial"]


@pytest.mark.parametrize("content", ["other task", "nothing", "no tensors", "no state", "half a file"])
def test_only_what_was_stored_for_the_same_task_is_gone_on_with(
    checkpoint: Checkpoint, content: str, tmp_path: Path
) -> None:
    path = tmp_path / "partial"
    match content:
        case "other task":
            calibrator(checkpoint, PASSAGES[0]).save(path, "other")
        case "no tensors":
            path.write_text("not a file of tensors")
        case "no state":
            save_file({"profile": torch.zeros(1)}, path)
        case "half a file":
            calibrator(checkpoint, PASSAGES[0]).save(path, "task")
            path.write_bytes(path.read_bytes()[:-10])
    fresh = calibrator(checkpoint)
    assert not fresh.resume(path, "task")
    assert fresh.count == 0


def test_passages_fit_the_models_context() -> None:
    assert passage_length(8192, REQUESTED) == 1024
    assert passage_length(2048, REQUESTED) == 768  # twice, and the request between
    assert passage_length(2053, REQUESTED) == 1024
    assert passage_length(1029, REQUESTED) == 512
    with pytest.raises(ModelError, match=r"1028 tokens is too short to calibrate; it takes 1029"):
        passage_length(1028, REQUESTED)


SaveTokenizer = Callable[..., Path]


@pytest.mark.parametrize("begins", [False, True])
def test_passages_are_taken_in_turn_and_begin_as_the_model_expects(
    begins: bool, byte_level: Callable[[], Backend], save_tokenizer: SaveTokenizer
) -> None:
    backend = byte_level()
    if begins:
        start = backend.token_to_id("<s>")
        backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", start)])
    tokenizer = Tokenizer.from_folder(save_tokenizer(backend))
    length = 4 + begins
    found = list(passages(tokenizer, ["aaaabbbbcc", "ddd", "eeeeffff"], 3, length))
    assert [tokenizer.decode(ids, skip_special_tokens=False) for ids in found] == [
        ("<s>" if begins else "") + text for text in ("aaaa", "eeee", "bbbb")
    ]
    assert len(list(passages(tokenizer, ["aaaabbbbcc", "ddd", "eeeeffff"], 9, length))) == 4
    assert list(passages(tokenizer, [], 3, length)) == []


MADE = Calibration(
    LinearScorer(torch.randn(3, 2, 2, 64), torch.randn(3, 2, 2)),
    LaneProfile(torch.tensor([0.25, 0.5]), torch.tensor([[0.25] * 6, [0.5] * 6])),
)


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "it.safetensors"
    write_calibration(path, MADE, "abc", {"passages": 7, "model": "a lie"})
    read = read_calibration(path, "abc")
    torch.testing.assert_close(read.scorer.weights, MADE.scorer.weights, rtol=1e-3, atol=1e-3)
    assert all(torch.equal(a, b) for a, b in zip(tensors(read)[1:], tensors(MADE)[1:], strict=True))
    with safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["calibration"]) == {"version": 1, "model": "abc", "passages": 7}
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e6])
def test_what_is_no_number_is_not_written(value: float, tmp_path: Path) -> None:
    weights = MADE.scorer.weights.clone()
    weights[0, 0, 0, 0] = value
    with pytest.raises(ModelError, match="no calibration can be made"):
        write_calibration(tmp_path / "it", Calibration(LinearScorer(weights, MADE.scorer.bias), MADE.profile), "a", {})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelError, match="cannot be written"):
        write_calibration(tmp_path / "file" / "it", MADE, "abc", {})


def stored(path: Path, header: object = None, **changes: Tensor | None) -> Path:
    """A good calibration of model "abc" in `path`, with what `changes` says; None leaves a tensor out."""
    write_calibration(path, MADE, "abc", {})
    with safe_open(path, "pt") as file:
        kept = {name: file.get_tensor(name) for name in file.keys()} | changes  # noqa: SIM118 - it is no mapping
        described = file.metadata() if header is None else {"calibration": json.dumps(header)}
    save_file({name: tensor for name, tensor in kept.items() if tensor is not None}, path, described)
    return path


def test_files_that_cannot_be_used_get_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "it.safetensors"

    def refused(reason: str) -> None:
        with pytest.raises(ModelError, match=reason) as caught:
            read_calibration(path, "abc")
        assert str(path) in str(caught.value)

    refused("cannot be read")  # it is not there
    path.mkdir()
    refused("cannot be read")
    path.rmdir()
    path.write_bytes(b"\0" * 100)
    refused("cannot be read")
    stored(path)
    path.write_bytes(path.read_bytes()[:-1])
    refused("cannot be read")
    save_file({"weights": torch.zeros(1)}, path)
    refused("no calibration of a form that is known here; make it anew with `scissorserve calibrate MODEL --out ")
    for header in ([], {}, {"version": 2, "model": "abc"}, "abc"):
        stored(path, header)
        refused("no calibration of a form that is known here")
    stored(path, {"version": 1, "model": "abcd"})
    refused("was made for another model")
    stored(path, {"version": 1})
    refused("was made for another model")


@pytest.mark.parametrize(
    "changes",
    [
        {"bias": None},
        {"weights": torch.full((3, 2, 2, 64), torch.nan)},
        {"bias": torch.full((3, 2, 2), torch.inf)},
        {"lane_rows": torch.full((2, 6), torch.nan)},
        {"lane_rows": torch.ones(2, 5)},
        {"lane_shares": torch.tensor([0.5, 0.25])},
        {"lane_shares": torch.tensor([0.5]), "lane_rows": torch.ones(1, 6)},
        {"weights": torch.zeros(3, 2, 64)},
        {"weights": torch.zeros(3, 2, 1, 64), "bias": torch.zeros(3, 2, 1)},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_numbers_that_do_not_fit_together_are_refused(changes: dict[str, Tensor | None], tmp_path: Path) -> None:
    path = stored(tmp_path / "it", **changes)
    with pytest.raises(ModelError, match="is damaged; make it anew"):
        read_calibration(path, "abc")


def test_the_nearest_calibration_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = Checkpoint(saved(tiny_llama(), tmp_path / "model"))
    monkeypatch.setattr(models.calibration_file, "_SHIPPED", tmp_path / "shipped")
    own = calibration_path(checkpoint.fingerprint(), tmp_path)
    assert find_calibration(checkpoint, tmp_path) is None
    # from the last that is looked at to the first
    places = [tmp_path / "shipped" / own.name, own, tmp_path / "model" / "calibration.safetensors", tmp_path / "chosen"]
    for number, place in enumerate(places):
        made = Calibration(LinearScorer(MADE.scorer.weights, torch.full((3, 2, 2), float(number))), MADE.profile)
        write_calibration(place, made, checkpoint.fingerprint(), {})
        found = find_calibration(checkpoint, tmp_path, place if place.name == "chosen" else None)
        assert found is not None
        assert found.scorer.bias[0, 0, 0] == number
    with pytest.raises(ModelError, match="cannot be read"):
        find_calibration(checkpoint, tmp_path, tmp_path / "missing")


def test_models_that_differ_in_one_weight_have_other_fingerprints(checkpoint: Checkpoint, tmp_path: Path) -> None:
    changed = tiny_llama()
    with torch.no_grad():
        changed.model.layers[2].self_attn.v_proj.weight[0, 0] += 1e-3
    assert Checkpoint(saved(changed, tmp_path)).fingerprint() != checkpoint.fingerprint()
    assert Checkpoint(saved(tiny_llama(), tmp_path)).fingerprint() == checkpoint.fingerprint()


@pytest.mark.model
def test_the_shipped_calibration_fits_the_default_model(default_model_folder: Path, tmp_path: Path) -> None:
    """Its scores say what is measured on half a passage of an essay it was made from."""
    checkpoint = Checkpoint(default_model_folder)
    calibration = find_calibration(checkpoint, tmp_path)
    assert calibration is not None, "no calibration of the default model is shipped: make one with the default options"
    tokenizer = Tokenizer.from_folder(default_model_folder)
    (passage,) = passages(tokenizer, calibration_essays(), 1, 512)
    with torch.inference_mode():
        found = attended(load_model(checkpoint), passage, tokenizer.encode(REQUEST))
        scorer = calibration.scorer
        states = [scorer.state(layer, features) for layer, features in enumerate(found.features)]
    scores = scorer.scores(torch.stack(states)).permute(0, 3, 2, 1)
    measured = torch.stack((found.recall, found.flow), dim=1).add(1e-4).log()
    rows = slice(4, 256)
    pairs = zip(scores[..., rows].flatten(0, 2), measured[..., rows].flatten(0, 2), strict=True)
    agreement = torch.tensor([float(torch.corrcoef(torch.stack(pair))[0, 1]) for pair in pairs])
    assert agreement.median() > 0.7, agreement.quantile(torch.tensor([0, 0.1, 0.25, 0.5]))
