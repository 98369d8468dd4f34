"""The step of `benchmarks.redundancy`, beside least squares from scratch."""

from __future__ import annotations

import torch

from benchmarks.redundancy import RIDGE, Reader


def least_squares(weight: torch.Tensor, gram: torch.Tensor, kept: list[int]) -> float:
    """The error of the best weights on the channels that stay, summed over outputs and taps."""
    rows = weight.transpose(1, -1).flatten(0, -2)
    best = torch.linalg.solve(gram[kept][:, kept], gram[kept] @ rows.T).T
    change = rows.clone()
    change[:, kept] -= best
    return float(((change @ gram) * change).sum())


def test_what_the_steps_add_up_to_is_the_error_of_least_squares() -> None:
    torch.manual_seed(0)
    weight = torch.randn(5, 8, 3, 3, dtype=torch.float64)
    x = torch.randn(8, 200, dtype=torch.float64).cumsum(0)
    covariance = x @ x.T / 200
    gram = covariance + RIDGE * covariance.diagonal().mean() * torch.eye(8).double()
    reader = Reader(weight, covariance, torch.ones(5))
    alone = reader.increase()
    total, kept = 0.0, list(range(8))
    for channel in (3, 6, 0, 2):
        total += float(reader.increase()[channel])
        reader.remove(channel)
        kept.remove(channel)
        assert abs(total / least_squares(weight, gram, kept) - 1) < 1e-9
    assert not torch.isclose(alone[[3, 6, 0, 2]].sum(), torch.tensor(total).double(), rtol=0.1)


def test_channels_that_stand_in_for_each_other_are_not_both_free() -> None:
    x, y = torch.randn(2, 500, generator=torch.Generator().manual_seed(0)).double()
    rows = torch.stack([x, x, y])
    reader = Reader(torch.ones(1, 3), rows @ rows.T / 500, torch.ones(1))
    first, second, _ = reader.increase().tolist()
    assert first < 1e-3 and second < 1e-3
    reader.remove(0)
    assert reader.increase()[1] > 1
