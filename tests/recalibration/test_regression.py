"""Sums in float32 give the regression that float64 gives, wherever the mean is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from obc.recalibration.regression import RIDGES, Moments, choose, gram, solve
from tests.reference import relative_error


def rows(mean: float) -> tuple[Tensor, Tensor]:
    """Correlated rows far from zero, and residuals that depend on them."""
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(2, 4096, 24, generator=generator, dtype=torch.float64)
    mix = torch.randn(2, 24, 24, generator=generator, dtype=torch.float64)
    u = (u @ mix + mean).float().double()  # exact in float32
    r = u @ torch.randn(2, 24, 5, generator=generator, dtype=torch.float64)
    noise = torch.randn(2, 4096, 5, generator=generator, dtype=torch.float64)
    return u, (r - r.mean(1, True) + noise).float().double()


def moments(u: Tensor, r: Tensor, kind: torch.dtype) -> Moments:
    sums = Moments.zero(2, 5, 24, torch.device("cpu"))
    for a, b in zip(u.to(kind).split(1000, 1), r.to(kind).split(1000, 1), strict=True):
        sums.add(a, b, b)
    return sums


@pytest.mark.parametrize("mean", [0.0, 3.0, 300.0])
@pytest.mark.parametrize("intercept", [True, False])
def test_float32_is_enough(mean: float, intercept: bool) -> None:
    u, r = rows(mean)
    v, s = (u - u.mean(1, True), r - r.mean(1, True)) if intercept else (u, r)
    gram = v.mT @ v / 4096
    strength = 1e-5 * gram.diagonal(dim1=1, dim2=2).mean(1)
    gram = gram + strength[:, None, None] * torch.eye(24, dtype=torch.float64)
    expected = torch.linalg.solve(gram, v.mT @ s / 4096).mT
    exact, single = (
        solve(moments(u, r, kind), 1e-5, intercept) for kind in (torch.float64, torch.float32)
    )
    assert exact is not None and single is not None
    assert relative_error([expected], [exact.weight]) < 1e-8
    assert relative_error([expected], [single.weight]) < 1e-3


def test_without_the_mean_it_would_not_be() -> None:
    u, _ = rows(3000.0)
    single = u.float()
    raw = (single.mT @ single).double() / 4096
    mean = u.mean(1)
    covariance = raw - mean.unsqueeze(-1) * mean.unsqueeze(-2)
    v = u - u.mean(1, True)
    assert relative_error([v.mT @ v / 4096], [covariance]) > 1e-3


def test_held_out_error() -> None:
    """From sums alone, what a change leaves on rows."""
    u, r = rows(3.0)
    sums = moments(u, r, torch.float64)
    change = solve(sums, 1e-2, True)
    assert change is not None
    left = r - u @ change.weight.mT - change.bias.unsqueeze(1)
    expected = left.square().sum(1)
    assert relative_error([expected], [sums.error(change)]) < 1e-8
    assert relative_error([expected], [moments(u, r, torch.float32).error(change)]) < 1e-3
    assert relative_error([expected], [sums.rr]) > 0.1, "compares nothing"


@pytest.mark.parametrize("width", [255, 256, 601])
def test_gram_by_halves(width: int) -> None:
    v = torch.randn(2, 50, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert relative_error([v.mT @ v], [gram(v)]) < 1e-12
    assert relative_error([gram(v[:, :25])], [gram(v)]) > 0.1, "compares nothing"


@pytest.mark.parametrize("count", [60, 300, 20000])
@pytest.mark.parametrize("intercept", [True, False])
def test_random_sums_choose_as_all_outputs_would(count: int, intercept: bool) -> None:
    """Few rows need a strong ridge and many a weak one, whatever the outputs' scale."""
    generator = torch.Generator().manual_seed(1)
    width, outputs = 48, 300
    scale = torch.rand(1, outputs, generator=generator, dtype=torch.float64).square() * 9
    weight = torch.randn(1, width, outputs, generator=generator, dtype=torch.float64)
    weight[:, 0] = 3.0  # what all outputs have in common is what random sums get wrong
    both = []
    for rows in (count, 4000):
        u = torch.randn(1, rows, width, generator=generator, dtype=torch.float64)
        u = u * torch.logspace(0, -1.5, width, dtype=torch.float64)
        noise = torch.randn(1, rows, outputs, generator=generator, dtype=torch.float64)
        sums = Moments.zero(1, outputs, width, torch.device("cpu"))
        sums.add(u, u @ weight + noise, noise)
        both.append(sums)
    fit, held = both
    errors = {}
    for ridge in RIDGES:
        change = solve(fit, ridge, intercept)
        assert change is not None
        errors[ridge] = float((held.error(change) * scale.square()).sum())
    change, ridge, error = choose(fit, held, intercept, scale, RIDGES)
    assert change is not None and ridge is not None
    assert error == pytest.approx(errors[ridge], rel=1e-12), "the error is that of all outputs"
    assert error <= 1.002 * min(errors.values())
    assert max(errors.values()) > 1.02 * min(errors.values()), "any ridge would do"
    assert error < float((held.rr * scale.square()).sum())
