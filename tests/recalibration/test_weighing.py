"""Rows of a sum that a norm reads count by the size of the sum."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import obc
from obc.recalibration.regression import Moments, solve
from tests.recalibration.dense import best
from tests.reference import relative_error


class Written(nn.Module):
    """RMSNorm as transformers writes it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = x.to(torch.promote_types(x.dtype, torch.float32))
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(x.dtype)


class Stream(nn.Module):
    """Two branches of a residual stream; the second is read through a norm, or not."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        self.first, self.last = nn.Linear(6, 12), nn.Linear(12, 6, bias=False)
        self.before, self.behind = norm(6), norm(6)

    def branch(self, x: Tensor) -> Tensor:
        return torch.relu(self.first(self.before(x)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(self.behind(x + self.last(self.branch(x))))


def cut_and_fitted(norm: Callable[[int], nn.Module]) -> tuple[Tensor, Tensor, Tensor]:
    """The fitted weight, and what least squares says with and without the weights of rows."""
    torch.manual_seed(0)
    net = Stream(norm).double().eval()
    x = torch.randn(64, 5, 4, dtype=torch.float64)
    x[:, 0] *= 100  # as in a decoder, whose first position is far longer than the others
    plan = obc.Plan.from_kept(obc.trace(net, x[:2]), {"first": [0, 2, 3, 7, 8, 11]})
    small = obc.apply(copy.deepcopy(net), plan)
    naive = copy.deepcopy(small.last)
    account = obc.recalibrate(small, net, x.split(16), residual=False)
    fit = next(f for f in account.fits if f.name == "last.weight")
    assert fit.kept and fit.rows == 56 * 5
    trained = net.stem(x[torch.arange(64) % 8 != 7]).detach()
    reads, target = small.branch(trained).detach(), net.last(net.branch(trained)).detach()
    root = (trained + target).square().mean(-1, keepdim=True).rsqrt()
    weighed = best(naive, reads * root, target * root, -1, fit.ridge, False)
    plain = best(naive, reads, target, -1, fit.ridge, False)
    return small.last.weight.detach(), weighed, plain


@pytest.mark.parametrize("norm", [nn.RMSNorm, nn.LayerNorm, Written])
def test_a_norm_reads_the_sum(norm: Callable[[int], nn.Module]) -> None:
    fitted, weighed, plain = cut_and_fitted(norm)
    assert relative_error([weighed], [fitted]) < 1e-8
    assert relative_error([plain], [fitted]) > 1e-2, "the reference does not see the weights"


def test_no_norm_reads_the_sum() -> None:
    fitted, weighed, plain = cut_and_fitted(lambda width: nn.Identity())
    assert relative_error([plain], [fitted]) < 1e-8
    assert relative_error([weighed], [fitted]) > 1e-2, "the reference does not see the weights"


@pytest.mark.parametrize("intercept", [True, False])
def test_a_weight_of_three_is_a_row_three_times(intercept: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    u = 2 + torch.randn(2, 40, 5, generator=generator, dtype=torch.float64)
    r = torch.randn(2, 40, 3, generator=generator, dtype=torch.float64)
    times = torch.arange(40) % 4
    often, weighed, plain = (Moments.zero(2, 3, 5, torch.device("cpu")) for _ in range(3))
    often.add(*(x.repeat_interleave(times, 1) for x in (u, r, r)))
    weighed.add(u[:, :25], r[:, :25], r[:, :25], times[:25].double())
    weighed.add(u[:, 25:], r[:, 25:], r[:, 25:], times[25:].double())
    plain.add(u, r, r)
    assert int(weighed.rows) == 40 and float(weighed.count) == int(often.rows)
    changes = [solve(m, 1e-3, intercept) for m in (often, weighed, plain)]
    values = [[c.weight, c.bias, often.error(c)] for c in changes if c is not None]
    assert relative_error(values[0], values[1]) < 1e-10
    assert relative_error([often.spread, often.rr], [weighed.spread, weighed.rr]) < 1e-10
    assert relative_error(values[0], values[2]) > 1e-2, "compares nothing"
