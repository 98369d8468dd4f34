"""Steps, rows and seconds, told before a run and while it goes on, against what they are."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

import obc
from obc.plans.plan import PlanCost
from obc.running.processes import Group
from obc.search.estimate import estimate
from obc.search.planner import prepare
from obc.search.progress import Progress
from obc.search.way import Pace, Way, way_to
from tests.search.nets import Residual, batches, loss

X = torch.zeros(1, 1, 8, 8)


@pytest.mark.parametrize("pace", ["channels", "cost"])
@pytest.mark.parametrize("target", ["macs=1.3x", "macs=2x", "params=60%"])
def test_the_number_of_steps_is_close_to_that_of_the_run(target: str, pace: str) -> None:
    settings: dict[str, Any] = {"target": target, "step": 0.03, "rows": 2, "pace": pace}
    told = estimate(Residual(), X, batches(), loss, **settings)
    steps = len(obc.plan(Residual(), X, batches(), loss, **settings).history)
    assert 0.6 * steps - 1 <= told.steps <= 1.7 * steps + 1
    assert told.rows == 2 * told.steps
    assert told.seconds > 0 and str(told).startswith(f"about {told.steps} steps, {told.rows} rows")


def test_weights_alone_need_no_rows() -> None:
    told = estimate(Residual(), X, target="macs=2x", step=0.05, criterion="l1")
    assert told.rows == 0 and told.row == 0 and told.steps > 1


def test_seconds_follow_the_rows() -> None:
    """A loss that takes its time makes an estimate that is as much longer."""

    def slow(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        time.sleep(0.05)
        return loss(model, batch)

    settings: dict[str, Any] = {"target": "macs=1.5x", "step": 0.05, "rows": 4}
    told = estimate(Residual(), X, batches(), slow, **settings)
    assert told.row >= 0.05
    assert told.seconds >= told.rows * 0.05 * 0.5


def test_memory_is_two_models_and_what_a_row_keeps() -> None:
    """Twice the batch keeps twice as much; the models beside it stay as they are."""
    weights = sum(t.numel() * 4 for t in Residual().state_dict().values() if t.is_floating_point())
    one, two = (
        estimate(Residual(), X, batches(size=n), loss, target="macs=2x").memory - 2 * weights
        for n in (8, 16)
    )
    assert one > 8 * 64 * 4 and 1.9 * one < two < 2.1 * one


def test_shapes_alone_are_enough() -> None:
    """On the meta device nothing is run, and the time follows from the MACs."""
    settings: dict[str, Any] = {"target": "macs=2x", "step": 0.05, "rows": 3}
    real = estimate(Residual(), X, batches(), loss, **settings)
    with torch.device("meta"):
        model = Residual()
    moved = [(x.to("meta"), y.to("meta")) for x, y in batches()]
    told = estimate(model, X.to("meta"), moved, loss, **settings)
    assert (told.steps, told.rows) == (real.steps, real.rows)
    assert told.row > 0 and abs(told.memory - real.memory) < 0.01 * real.memory


def test_the_way_ahead_ends_at_the_limit() -> None:
    run = prepare(Residual(), X, batches(), loss, target="macs=2x")
    sizes = [site.size for site in run.sites]
    assert way_to(run.reach, sizes, run.reach.whole, Pace(1)).steps == 0
    near, far = (way_to(run.reach, sizes, run.reach.whole * s, Pace(1)) for s in (0.9, 0.5))
    assert 0 < near.steps < far.steps and far.share < near.share < 1
    assert way_to(run.reach, sizes, run.reach.whole * 0.5, Pace(2)).steps < far.steps


def cost(macs: int) -> PlanCost:
    return PlanCost(macs=macs, params=300, channels=3)


def line_after(monkeypatch: pytest.MonkeyPatch, seconds: list[tuple[int, float]]) -> Progress:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    line = Progress(Group())
    for number, (macs, taken) in enumerate(seconds):
        now[0] += taken
        line.update(number + 1, cost(macs), None)
    return line


def test_time_left_is_steps_left_times_what_one_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    line = line_after(monkeypatch, [(2_000_000, 60.0), (2_000_000, 10.0), (2_000_000, 10.0)])
    assert line.line(3, cost(2_000_000), Way(3, 1.0)) == (
        "step 3  2 M MACs  300 parameters  10 s a step  0:30 left"
    )
    assert "left" not in line.line(3, cost(2_000_000), None)


@pytest.mark.parametrize("overhead", [0.0, 2.0, 20.0])
def test_time_left_knows_what_of_a_step_shrinks(
    monkeypatch: pytest.MonkeyPatch, overhead: float
) -> None:
    """A run whose steps take overhead + MACs seconds, from 20 down to 1: half-way it tells."""
    taken = [(macs, overhead + macs) for macs in range(20, 0, -1)]
    line = line_after(monkeypatch, taken[:10])
    left = sum(seconds for _, seconds in taken[10:])
    way = Way(10, sum(macs for macs, _ in taken[10:]) / 10 / taken[9][0])
    assert line.left(way) == pytest.approx(left, rel=0.1)
