"""The best token, in C++ as in torch."""

from __future__ import annotations

import pytest
import torch

from csrc.library import Kernels, available_variants
from models.argmax import best_tokens, plain_argmax

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("variant", available_variants())
@pytest.mark.parametrize("width", [1, 3, 16, 33, 1000])
def test_as_torch_does(variant: str, width: int) -> None:
    torch.manual_seed(width)
    logits = torch.randint(-5, 6, (7, width)).float()  # with many ties
    logits[1] = NAN
    logits[2] = -INF
    logits[3, -1] = INF
    logits[4, 0] = NAN
    assert torch.equal(Kernels(variant).argmax(logits), plain_argmax(logits))
    wide = torch.full((7, width + 5), 9.0)
    wide[:, :width] = logits
    assert torch.equal(Kernels(variant).argmax(wide[:, :width]), plain_argmax(logits))


def test_a_row_without_numbers_has_no_best_token() -> None:
    assert best_tokens(torch.tensor([[NAN, -INF], [NAN, 0.0], [2.0, 2.0]])) == [None, 1, 0]
