"""Kernels in several threads, and called from several: always the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from models.argmax import best_tokens, plain_argmax
from models.linear import Int8Linear


@pytest.fixture(params=[2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_number_of_threads_changes_nothing(threads: int) -> None:
    torch.manual_seed(0)
    layer, x = Int8Linear(torch.randn(400, 128)), torch.randn(70, 128)
    torch.set_num_threads(1)
    alone = layer(x)
    torch.set_num_threads(threads)
    for _ in range(200):  # many short loops, one right after the other
        assert torch.equal(layer(x), alone)
        assert torch.equal(layer(x[:1]), alone[:1])


def test_callers_at_the_same_time(threads: int) -> None:
    torch.manual_seed(1)
    layers, x = [Int8Linear(torch.randn(200, 64)) for _ in range(4)], torch.randn(33, 64)
    expected = [layer(x) for layer in layers]
    logits = torch.randn(9, 5000)

    def call(number: int) -> bool:
        layer = layers[number % 4]
        results = [torch.equal(layer(x), expected[number % 4]) for _ in range(50)]
        return all(results) and best_tokens(logits) == plain_argmax(logits).tolist()

    with ThreadPoolExecutor(4) as executor:
        assert all(executor.map(call, range(16)))
