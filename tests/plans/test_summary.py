"""What people see of a plan and of a run."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

import obc
from obc.search import progress
from tests.search.nets import Fixed, Residual, batches, graded, loss

X = torch.zeros(1, 1, 8, 8)


def test_a_summary_tells_sites_costs_scores_and_floors() -> None:
    plan = obc.plan(
        graded(Residual()), X, target="channels=62.5%", criterion=Fixed(), max_ratio=0.5
    )
    text = plan.summary()
    assert "Plan for channels=62.5%" in text
    assert plan.before and plan.after
    for number in (plan.before.macs, plan.after.macs, plan.before.params, plan.after.params):
        assert f"{number:,}" in text
    for name, site in plan.sites.items():
        row = next(line for line in text.splitlines() if name in line)
        assert f" {site.size} " in row and f" {len(site.kept)} " in row
        assert f"{site.highest_removed:.3g}" in row and f"{site.lowest_kept:.3g}" in row
        assert ("at its floor" in row) == (len(site.kept) == site.floor)
    assert any(len(s.kept) == s.floor for s in plan.sites.values())


def test_a_plan_made_by_hand_has_a_summary_too() -> None:
    plan = obc.Plan.from_kept(obc.trace(Residual(), X), {"inner": [1, 2]})
    assert "inner" in plan.summary()
    console = Console(file=io.StringIO(), width=100)
    console.print(plan)
    assert "inner" in console.file.getvalue()  # type: ignore[attr-defined]


def test_nothing_is_written_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    obc.plan(Residual(), X, batches(), loss, target="macs=1.5x", step=0.1, rows=2)
    assert capfd.readouterr() == ("", "")


def test_a_terminal_shows_step_cost_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Console(file=io.StringIO(), force_terminal=True, width=120)
    monkeypatch.setattr(progress, "terminal", lambda group: page)
    obc.plan(Residual(), X, batches(), loss, target="macs=1.5x", step=0.1, rows=2)
    text = page.file.getvalue()  # type: ignore[attr-defined]
    assert "step " in text and "MACs" in text and "parameters" in text and "s a step" in text
