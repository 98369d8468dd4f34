"""Comparisons as a library: every setting reaches the plan, and cells of others are refused."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import obc
from obc.cli.compare import comparison_table
from obc.experiments.comparison import (
    ABLATIONS,
    CRITERIA,
    Cell,
    Comparison,
    Variant,
    ablation,
    criteria,
    curve,
)
from obc.reporting.page import page
from obc.reporting.record import Record
from obc.tasks import Classification
from obc.tasks.recalibration import recalibrate_for


def net() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 48, 1),
        nn.BatchNorm2d(48),
        nn.ReLU(),
        nn.Conv2d(48, 40, 1),
        nn.BatchNorm2d(40),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(40, 4),
    ).eval()
    for norm in (model[1], model[4], model[7]):
        nn.init.uniform_(norm.weight, 0.5, 1.5)  # scales that are all one rank nothing
    return model


def experiment(folder: Path, **settings: Any) -> Comparison:
    torch.manual_seed(1)
    batches = [(torch.randn(8, 1, 6, 6), torch.randint(0, 4, (8,))) for _ in range(4)]
    return Comparison(
        folder=folder,
        task=Classification(batches, batches),
        targets=["macs=70%", "macs=50%"],
        settings={"criterion": "jacobian", "rows": 2, "step": 0.1, **settings},
    )


@pytest.mark.parametrize("variant", criteria(CRITERIA), ids=lambda v: v.name)
def test_a_cell_is_what_the_verbs_give(variant: Variant, tmp_path: Path) -> None:
    """Each criterion by hand: plan, apply, evaluate."""
    model, job = net(), experiment(tmp_path)
    cell = job.cell(model, variant, seed=3)
    example = job.task.example()
    plans = obc.plan(
        model,
        task=job.task,
        target=list(job.targets),
        criterion=variant.name,
        rows=2,
        step=0.1,
        seed=3,
    )
    for plan, point in zip(plans, cell.points, strict=True):
        pruned = obc.apply(net(), plan)
        found = obc.cost(pruned, example)
        assert point.macs == pytest.approx(1 - found.macs / obc.cost(model, example).macs)
        assert point.loss == obc.evaluate(pruned, job.task).loss
    assert cell.before.loss == obc.evaluate(model, job.task).loss
    assert cell.seconds > 0


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_ablation_reaches_the_plan(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []
    real = obc.plan

    def spy(*args: Any, **settings: Any) -> Any:
        seen.append(settings)
        return real(*args, **settings)

    module = importlib.import_module("obc.experiments.comparison")
    monkeypatch.setattr(module, "plan", spy)
    variants = ablation(name, rows=2, step=0.1)
    for variant in variants:
        experiment(tmp_path).cell(net(), variant, seed=0)
    assert len(seen) == len(variants) > 1
    for variant, settings in zip(variants, seen, strict=True):
        assert settings["criterion"] == "jacobian"
        assert all(settings[key] == value for key, value in variant.settings.items())
    assert len({str(sorted(v.settings.items())) for v in variants}) == len(variants)
    assert len({v.file for v in variants}) == len(variants)


def test_a_cell_of_another_model_or_budget_is_refused(tmp_path: Path) -> None:
    variant = Variant("l1", {"criterion": "l1"})
    first = experiment(tmp_path).cell(net(), variant, 0)
    assert experiment(tmp_path).cell(net(), variant, 0) == first  # from the disk
    other = net()
    with torch.no_grad():
        other[0].weight[0, 0, 0, 0] += 1
    with pytest.raises(obc.ObcError, match="its digest of the model is"):
        experiment(tmp_path).cell(other, variant, 0)
    with pytest.raises(obc.ObcError, match=r"its step is 0\.1, not 0\.2"):
        experiment(tmp_path, step=0.2).cell(net(), variant, 0)


def test_a_damaged_cell_is_no_cell(tmp_path: Path) -> None:
    variant = Variant("l1", {"criterion": "l1"})
    experiment(tmp_path).cell(net(), variant, 0)
    file = tmp_path / "cells" / "l1-0.json"
    file.write_text(file.read_text()[:-20])
    with pytest.raises(obc.ObcError, match=r"l1-0\.json"):
        experiment(tmp_path).cell(net(), variant, 0)


def test_the_model_stays_as_it_was(tmp_path: Path) -> None:
    model = net()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    experiment(tmp_path).cell(model, Variant("jacobian"), 0)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    cell: Cell = experiment(tmp_path).cell(net(), Variant("jacobian"), 0)
    found = curve([cell])
    assert found.seeds == 1 and [p.quality_std for p in found.points] == [0.0, 0.0, 0.0]


def test_a_recalibrated_cell_has_the_same_plans(tmp_path: Path) -> None:
    """Each budget by hand: the plain cell's plan, applied and recalibrated."""
    model, job = net(), replace(experiment(tmp_path), samples=32)
    variant = Variant("l1", {"criterion": "l1"})
    plain = job.cell(model, variant, 0)
    assert len(list((tmp_path / "planning").iterdir())) == 1, "kept for the second line"
    fitted = job.cell(model, variant, 0, recalibrated=True)
    assert fitted.variant == "l1, recalibrated"
    assert not list((tmp_path / "planning").iterdir()), "planning is over"
    plans = obc.plan(
        model, task=job.task, target=list(job.targets), criterion="l1", rows=2, step=0.1
    )
    for plan, cut, after in zip(plans, plain.points, fitted.points, strict=True):
        pruned = obc.apply(net(), plan)
        assert obc.evaluate(pruned, job.task).loss == cut.loss != after.loss
        recalibrate_for(job.task, pruned, model, samples=32)
        assert obc.evaluate(pruned, job.task).loss == after.loss
        assert cut.macs == after.macs
    with pytest.raises(obc.ObcError, match="its recalibrate is 32, not 16"):
        replace(job, samples=16).cell(model, variant, 0, recalibrated=True)


class Ruined(Classification):
    """A task whose metric is infinite for all but the whole model."""

    def outcomes(self, model: nn.Module, batch: Any) -> torch.Tensor:
        whole = sum(p.numel() for p in net().parameters())
        self.top1 = 50.0 if sum(p.numel() for p in model.parameters()) == whole else float("inf")
        return super().outcomes(model, batch)

    def summary(self, totals: torch.Tensor, count: int) -> Sequence[float]:
        _, top5, loss = super().summary(totals, count)
        return self.top1, top5, loss


def test_what_is_not_finite_is_kept_as_such(tmp_path: Path) -> None:
    job = experiment(tmp_path)
    batches = list(job.task.calibration())
    job = replace(job, task=Ruined(batches, batches))
    variant = Variant("l1", {"criterion": "l1"})
    cell = job.cell(net(), variant, 0)
    assert cell.before.quality is not None
    assert [p.quality for p in cell.points] == [None, None]
    assert job.cell(net(), variant, 0) == cell  # from the disk
    found = curve([cell])
    assert [p.quality is None for p in found.points] == [False, True, True]
    record = Record(title="ruined", command="obc compare", comparison=[found])
    record.save(tmp_path)
    assert Record.load(tmp_path).comparison == [found]
    assert "not finite" in page(record)
    table = comparison_table("ruined", cell, [found], record.metric)
    (first,) = table.columns[2].cells
    assert str(first) == "not finite"
