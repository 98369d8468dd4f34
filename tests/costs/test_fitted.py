"""Seconds fitted to measurements: with a clock of the test's own, whose law is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

import obc
from obc.costs import fitted, targets
from obc.costs.cost_model import Costs, costs_of
from obc.costs.fitted import Fitted, best_multiple, nonnegative
from obc.tracing.tracer import Tracing
from tests.search.nets import Residual, batches, loss

X = torch.zeros(1, 1, 8, 8)


class Clock:
    """Seconds by a formula of the counts, in place of measured ones."""

    def __init__(self, costs: Costs, law: Callable[[list[int]], float]) -> None:
        self.law, self.asked = law, 0
        self.whole = law([site.size for site in costs.tracing.sites])

    def seconds(self, counts: Sequence[int]) -> float:
        self.asked += 1
        return self.law(list(counts))


@pytest.fixture
def costs() -> Costs:
    return costs_of(Tracing(Residual(16, 32).eval(), X))


def by_macs_and_channels(costs: Costs) -> Callable[[list[int]], float]:
    """A runtime with a start of its own, and a price for each channel beside its MACs."""
    whole = float(costs.macs(torch.tensor([[s.size for s in costs.tracing.sites]])))

    def law(counts: list[int]) -> float:
        return 0.3 + float(costs.macs(torch.tensor([counts]))) / whole + 0.01 * sum(counts)

    return law


def test_the_law_of_a_clock_is_found(costs: Costs) -> None:
    law = by_macs_and_channels(costs)
    clock = Clock(costs, law)
    price = Fitted(costs, clock, multiple=1)
    assert clock.asked == fitted._MEASURED and price.error < 0.02
    sizes = [site.size for site in costs.tracing.sites]
    assert float(price(torch.tensor([sizes]))) == pytest.approx(law(sizes))
    half = [n // 2 for n in sizes]
    assert float(price(torch.tensor([half]))) == pytest.approx(law(half), rel=0.03)
    price.correct(2.0)
    assert float(price(torch.tensor([half]))) == pytest.approx(2 * law(half), rel=0.03)


def test_negative_control_a_clock_without_a_law(costs: Costs) -> None:
    generator = torch.Generator().manual_seed(0)
    price = Fitted(costs, Clock(costs, lambda _: float(torch.rand(1, generator=generator))), 1)
    assert price.error > 0.1


@pytest.mark.parametrize("step", [1, 4, 8])
def test_the_multiple_is_that_of_the_stairs(costs: Costs, step: int) -> None:
    macs = costs.macs

    def stairs(counts: list[int]) -> float:
        padded = [
            min(s.size, math.ceil(n / step) * step)
            for s, n in zip(costs.tracing.sites, counts, strict=True)
        ]
        return float(macs(torch.tensor([padded])))

    assert best_multiple(costs, Clock(costs, stairs)) == step


def test_nonnegative_least_squares() -> None:
    torch.manual_seed(0)
    rows = torch.randn(12, 3).double()
    values = rows @ torch.tensor([0.5, -0.3, 0.8]).double() + 0.1 * torch.randn(12).double()
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 41)] * 3).double()
    best = ((grid @ rows.T - values) ** 2).sum(1).min()
    x = nonnegative(rows, values)
    assert (x >= 0).all() and ((rows @ x - values) ** 2).sum() <= best + 1e-9
    free = torch.linalg.lstsq(rows, values[:, None]).solution[:, 0]
    assert (free < 0).any()  # or there would be nothing to bound


@pytest.mark.parametrize("off", [1.0, 1.2, 0.85])
def test_what_is_asked_is_what_is_measured(monkeypatch: pytest.MonkeyPatch, off: float) -> None:
    """Also where the fit is off by a fifth: the landing is measured, and landed again."""
    model = Residual(16, 32).eval()
    law = by_macs_and_channels(costs_of(Tracing(model, X)))

    class Measured(Clock):
        def of(self, cut: nn.Module) -> float:
            return off * law([site.size for site in obc.trace(cut, X)])

    monkeypatch.setattr(
        targets, "Candidates", lambda tracing, runtime: Measured(costs_of(tracing), law)
    )
    target = obc.Latency(speedup=1.5, runtime="torch")
    plan = obc.plan(model, X, batches(), loss, target=target, round_to=1, rows=2, step=0.1)
    assert plan.before and plan.after and plan.before.seconds and plan.after.seconds
    assert plan.before.seconds / plan.after.seconds == pytest.approx(1.5, rel=0.03)
    assert plan.target == "latency[torch]=1.5x"
    assert any("measured" in note for note in plan.notes)
    small = obc.apply(model, plan)
    assert obc.cost(small, X).macs == plan.after.macs


def test_a_runtime_is_written_in_brackets() -> None:
    target = targets.parse("latency[torch]=1.5x")
    assert target == obc.Latency(speedup=1.5, runtime="torch") and not target.measured
    assert targets.parse("latency=1.5x").measured
    with pytest.raises(obc.ObcError, match="no runtime named 'onxruntime'; did you mean"):
        targets.parse("latency[onxruntime]=1.5x")
