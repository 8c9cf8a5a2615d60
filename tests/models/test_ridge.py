"""Ridge regression from sums against least squares on the samples themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from models.ridge import RidgeSums


def samples(seed: int = 0, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """400 samples of 6 features that depend on each other, and 2 targets that are not quite linear in them."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(400, 6, generator=random) @ (torch.eye(6) + 0.2 * torch.randn(6, 6, generator=random))
    y = x @ torch.randn(6, 2, generator=random) + 3.0 + 0.5 * torch.randn(400, 2, generator=random)
    return x + offset, y


def closed_form(x: Tensor, y: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """By numpy's least squares: the penalty as samples of its own, the constant as what the means leave."""
    x, y = x.double(), y.double()
    x_mean, y_mean = x.mean(dim=0), y.mean(dim=0)
    amount = penalty * float((x - x_mean).square().sum(dim=0).mean())
    stacked = np.concatenate(((x - x_mean).numpy(), amount**0.5 * np.eye(x.shape[1])))
    targets = np.concatenate(((y - y_mean).numpy(), np.zeros((x.shape[1], y.shape[1]))))
    weights = torch.from_numpy(np.linalg.lstsq(stacked, targets, rcond=None)[0])
    return weights.float(), (y_mean - x_mean @ weights).float()


@pytest.mark.parametrize("penalty", [0.0, 1e-3, 0.5])
@pytest.mark.parametrize("parts", [1, 4])
def test_the_fit_is_that_of_least_squares(penalty: float, parts: int) -> None:
    sums = RidgeSums(2, 6, 2)
    for problem in range(2):
        for x, y in zip(*(part.chunk(parts) for part in samples(problem)), strict=True):
            sums.add(problem, x, y)
    weights, constants = sums.solve(penalty)
    for problem in range(2):
        expected = closed_form(*samples(problem), penalty)
        torch.testing.assert_close((weights[problem], constants[problem]), expected, rtol=1e-3, atol=1e-3)


def test_linear_data_are_recovered() -> None:
    x, _ = samples()
    truth, constant = torch.arange(12.0).view(6, 2), torch.tensor([-7.0, 2.0])
    sums = RidgeSums(1, 6, 2)
    sums.add(0, x, x @ truth + constant)
    weights, constants = sums.solve(0.0)
    torch.testing.assert_close((weights[0], constants[0]), (truth, constant), rtol=1e-3, atol=1e-3)


def test_features_far_from_zero_lose_no_digits() -> None:
    """Keys and values of some models have biases hundreds of times their spread."""
    x, y = samples(offset=2000.0)
    sums = RidgeSums(1, 6, 2)
    for part in range(0, 400, 100):
        sums.add(0, x[part : part + 100], y[part : part + 100])
    weights, constants = sums.solve(1e-3)
    expected, _ = closed_form(x, y, 1e-3)
    torch.testing.assert_close(weights[0], expected, rtol=1e-3, atol=1e-3)
    predicted = x.double() @ weights[0].double() + constants[0].double()
    torch.testing.assert_close(predicted.mean(dim=0).float(), y.mean(dim=0), rtol=0, atol=1e-2)


def test_features_that_never_vary_get_no_weight() -> None:
    sums = RidgeSums(1, 3, 1)
    sums.add(0, torch.ones(10, 3), torch.arange(10.0).unsqueeze(1))
    weights, constants = sums.solve(1e-3)
    assert weights.abs().max() < 1e-6
    torch.testing.assert_close(constants, torch.tensor([[4.5]]))
