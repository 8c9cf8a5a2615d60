"""lm-eval: log-likelihoods through the server are those of transformers."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from conftest import KEY, MODEL, Server
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import get_model

SENTENCE = "the a cat dog house river stone quickly slowly runs sleeps under over blue seven of and but ; , . 北 é"
WORDS = [*SENTENCE.split(" "), "\n"]
NUM_ITEMS = 200


@pytest.fixture
def items() -> list[Instance]:
    """Contexts with continuations of a few words."""
    chooser = random.Random(7)
    pairs = []
    for _ in range(NUM_ITEMS):
        context = " ".join(chooser.choices(WORDS, k=chooser.randint(1, 40)))
        continuation = " " + " ".join(chooser.choices(WORDS, k=chooser.randint(1, 6)))
        pairs.append((context, continuation))
    return [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]


def test_loglikelihoods_are_those_of_transformers(
    exact_server: Server,
    items: list[Instance],
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    folder = str(exact_server.folder)
    served: LM = get_model("local-completions").create_from_arg_string(
        f"model={MODEL},base_url={exact_server.v1}/completions,tokenizer_backend=huggingface,tokenizer={folder},num_concurrent=4"
    )
    local: LM = get_model("hf").create_from_arg_string(f"pretrained={folder},dtype=float32,device=cpu,batch_size=8")
    tokenizer = local.tokenizer
    differences = []
    for item, ours, theirs in zip(items, served.loglikelihood(items), local.loglikelihood(items), strict=True):
        num_tokens = max(1, len(tokenizer(item.args[1], add_special_tokens=False)["input_ids"]))
        differences.append(abs(ours[0] - theirs[0]) / num_tokens)
        assert differences[-1] < 1e-3, item.args
        assert ours[1] == theirs[1], item.args
    record_property("largest difference per token", max(differences))
