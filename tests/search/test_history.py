"""What a run remembers of its steps."""

from __future__ import annotations

import torch

import obc
from obc.plans.plan import PlanCost, PlanStep
from obc.plans.trajectory import removed_scores
from obc.search.history import notes
from tests.search.nets import Residual, graded

X = torch.zeros(1, 1, 8, 8)


def cost(macs: int, seconds: float | None = None) -> PlanCost:
    return PlanCost(macs=macs, params=1, channels=1, seconds=seconds)


def test_what_came_back_is_not_gone() -> None:
    history = [
        PlanStep(removed={"a": [3, 1]}, scores={"a": [0.5, 0.6]}, after=cost(9)),
        PlanStep(removed={"a": [2]}, scores={"a": [0.7]}, restored={"a": [1]}, after=cost(8)),
    ]
    assert removed_scores(history) == {"a": {3: 0.5, 2: 0.7}}


def test_a_run_that_takes_channels_back_adds_up_and_stays_nested() -> None:
    model = graded(Residual())
    targets = ["macs=58%", "macs=39.395%"]
    big, small = obc.plan(model, X, target=targets, criterion="random", round_to=2, step=0.01)
    assert any(step.restored for step in big.history), "or this test shows nothing"
    for plan in (big, small):
        gone = removed_scores(plan.history)
        for name, site in plan.sites.items():
            assert site.kept == [i for i in range(site.size) if i not in gone[name]]
        assert plan.after is not None
        pruned = obc.apply(graded(Residual()), plan)
        assert obc.cost(pruned, X).macs == plan.after.macs
    for name, kept in small.kept.items():
        assert set(kept) <= set(big.kept.get(name, range(100)))


def test_time_that_does_not_fall_is_told_once_for_each_stretch() -> None:
    steps = [(90, 1.0), (80, 1.0), (70, 0.5), (69, 0.5), (50, 0.5), (49, 0.4)]
    history = [PlanStep(removed={}, scores={}, after=cost(*own)) for own in steps]
    assert notes(cost(100, 1.0), history) == [
        "2.04x fewer MACs, 2.5x less time on this machine",
        "at step 1 MACs had fallen by 10% without any gain in time",
        "at step 2 MACs had fallen by 11% without any gain in time",
        "at step 5 MACs had fallen by 29% without any gain in time",
    ]
    assert notes(cost(100), [PlanStep(removed={}, scores={}, after=cost(50))]) == []
