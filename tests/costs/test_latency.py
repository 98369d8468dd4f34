"""Targets in time: with a clock that the test sets, and once with the real one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import obc
from obc.costs import latency
from tests.search.nets import Residual, batches, loss
from tests.untouched import untouched

X = torch.zeros(1, 1, 8, 8)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A machine that needs a nanosecond for each MAC, and a start of its own."""
    start = [0.0]
    monkeypatch.setattr(latency, "seconds", lambda m, x: start[0] + obc.cost(m, x).macs * 1e-9)
    return start


def test_the_fewest_channels_that_meet_the_time(clock: list[float]) -> None:
    model, data = Residual(16, 32).eval(), batches()
    with untouched(model):
        plan = obc.plan(model, X, data, loss, target="latency=2x", round_to=1, step=0.1, rows=2)
    assert plan.before and plan.after and plan.before.seconds and plan.after.seconds
    assert plan.before.seconds / plan.after.seconds >= 2
    assert plan.after.seconds == pytest.approx(plan.after.macs * 1e-9)
    one_less = plan.history[-2].after.seconds
    assert one_less is not None and one_less > plan.before.seconds / 2
    assert plan.notes[0].startswith("2.")
    assert "fewer MACs" in plan.summary() and " ms → " in plan.summary()


def test_widths_are_multiples_of_eight_unless_told_otherwise(clock: list[float]) -> None:
    model, data = Residual(16, 32).eval(), batches()
    plan = obc.plan(model, X, data, loss, target="latency=1.5x", rows=2)
    assert plan.sites
    assert all(len(kept) % 8 == 0 for kept in plan.kept.values())


def test_a_list_is_nested(clock: list[float]) -> None:
    model, data = Residual(16, 32).eval(), batches()
    small, big = obc.plan(
        model, X, data, loss, target=["latency=3x", "latency=1.5x"], round_to=2, rows=2, step=0.1
    )
    for name, kept in small.kept.items():
        assert set(kept) <= set(big.kept.get(name, range(100)))


def test_a_time_out_of_reach_is_told_before_any_work(clock: list[float]) -> None:
    clock[0] = 1.0
    text = r"latency=2x cannot be met: .*\dx fewer MACs, but the model runs only 1x as fast"
    with pytest.raises(obc.ObcError, match=text):
        obc.plan(Residual(), X, iter(()), loss, target="latency=2x")


def test_where_macs_fall_and_time_does_not_the_plan_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stairs(model: nn.Module, example: Any) -> float:
        return 2.0 if obc.cost(model, example).macs > 100_000 else 1.0

    monkeypatch.setattr(latency, "seconds", stairs)
    model, data = Residual().eval(), batches()
    plan = obc.plan(model, X, data, loss, target="latency=2x", round_to=1, rows=2, step=0.05)
    assert any("without any gain in time" in note for note in plan.notes)
    assert "without any gain in time" in plan.summary()


def test_the_real_clock_gives_the_time_of_one_run() -> None:
    class Slow(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert not self.training
            return x @ x

    slow, quick = torch.zeros(600, 600), torch.zeros(4, 4)
    model = Slow().train()
    state = torch.get_rng_state()
    assert latency.seconds(model, slow) > latency.seconds(model, quick) > 0
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
