"""Criteria side by side: same model, grouping and budget, no fine-tuning, repeated over seeds."""

from __future__ import annotations

import csv
import io
import itertools
import re
import shutil
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field
from torch import nn

from obc.criteria.reduce import AGGREGATORS, NORMALIZERS
from obc.criteria.score import score
from obc.disk import digest
from obc.disk.claim import check_same
from obc.disk.reading import parse, read_bytes
from obc.disk.writing import write_json
from obc.equivalent.apply import apply
from obc.errors import ObcError, closest
from obc.planning.planner import plan
from obc.plans.plan import Plan, PlanCost
from obc.reporting.record import Curve, Point, finite
from obc.running.modules import duplicate
from obc.search.ranking import SCOPES
from obc.tasks.recalibration import recalibrate_for
from obc.tasks.task import Task
from obc.tracing.tracer import trace

RECALIBRATED = ", recalibrated"  # behind the name of a variant
CRITERIA = ("random", "l1", "l2", "bn_scale", "fpgm", "whc", "taylor", "hessian", "jacobian")
SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)


@dataclass(frozen=True)
class Variant:
    """One line of a comparison: what is different for it, as options of `obc.plan`."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> str:
        return re.sub(r"\W+", "-", self.name).strip("-")


def criteria(names: Iterable[str]) -> list[Variant]:
    return [Variant(name, {"criterion": name}) for name in names]


def ablation(name: str, rows: int, step: float) -> list[Variant]:
    """The variants of one ablation of the Jacobian Criterion, around these rows N and step p.

    >>> [v.name for v in ablation("scope", 10, 0.02)]
    ['global', 'local', 'isomorphic']
    >>> [v.settings["rows"] for v in ablation("rows", 10, 0.02)]
    [1, 2, 5, 10, 20]
    """
    if name == "rows":
        counts = sorted({max(1, round(rows * f)) for f in (0.1, 0.2, 0.5, 1, 2)})
        return [Variant(f"N = {n}", {"rows": n}) for n in counts]
    if name == "step":
        shares = [min(step * f, 1.0) for f in (0.25, 0.5, 1, 2, 4)]
        return [Variant(f"p = {p:.4g}", {"step": p}) for p in shares]
    if name == "aggregate":
        return [
            Variant(f"{a}, normalised by {n}", {"aggregate": a, "normalize": n})
            for a, n in itertools.product(AGGREGATORS, NORMALIZERS)
        ]
    if name == "norm":
        return [
            Variant("dense in γ and β", {"diagonal_norm": False}),
            Variant("diagonal in γ and β", {"diagonal_norm": True}),
        ]
    if name == "scope":
        return [Variant(scope, {"scope": scope}) for scope in SCOPES]
    raise ObcError(
        f"no ablation named '{name}'{closest(name, ABLATIONS)}; there are {', '.join(ABLATIONS)}",
        section="names",
    )


ABLATIONS = ("rows", "step", "aggregate", "norm", "scope")


class CellPoint(BaseModel):
    """One budget: the shares removed, and what the model is worth without tuning.

    `quality` is the value of the task's first metric, None where that is not finite; cells of
    version 1 call it accuracy.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    target: str
    channels: float
    params: float
    macs: float
    quality: float | None = Field(validation_alias=AliasChoices("quality", "accuracy"))
    loss: float | None = None


class Cell(BaseModel):
    """One variant with one seed, whole or not there; `seconds` of CPU time for one scoring."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal["obc.cell"] = "obc.cell"
    version: Literal[1, 2] = 2
    variant: str
    seed: int
    model: str  # the digest of its weights
    settings: dict[str, Any]
    before: CellPoint
    points: list[CellPoint]
    seconds: float
    steps: int


@dataclass(frozen=True)
class Comparison:
    """What all variants have in common, and the folder of their cells.

    `batch_size` is that of calibration; `settings` are options of `obc.plan`; `samples` are those
    that recalibrated cells are fitted on.
    """

    folder: Path
    task: Task
    targets: Sequence[str]
    settings: Mapping[str, Any]
    batch_size: int = 128
    samples: int = 0

    def cell(
        self, model: nn.Module, variant: Variant, seed: int, *, recalibrated: bool = False
    ) -> Cell:
        """The cell from last time, or a new one; the model stays as it is.

        A recalibrated cell has the plans of the plain one.
        """
        settings = {**self.settings, **variant.settings, "seed": seed, "targets": [*self.targets]}
        aside = self.folder / "planning" / f"{variant.file}-{seed}"
        samples = self.samples if recalibrated else 0
        if recalibrated:
            variant = Variant(f"{variant.name}{RECALIBRATED}", variant.settings)
            settings["recalibrate"] = samples
        path = self.folder / "cells" / f"{variant.file}-{seed}.json"
        weights = digest.of_model(model)
        if path.exists():
            return _known(path, weights, settings)
        plans = self._plans(model, {**self.settings, **variant.settings, "seed": seed}, aside)
        cell = Cell(
            variant=variant.name,
            seed=seed,
            model=weights,
            settings=settings,
            before=self._point(model, None),
            points=[self._point(model, plan, samples, seed) for plan in plans],
            seconds=self._seconds(model, settings),
            steps=len(plans[-1].history),
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, cell.model_dump())
        if recalibrated or not self.samples:
            shutil.rmtree(aside, ignore_errors=True)
        return cell

    def _plans(self, model: nn.Module, settings: dict[str, Any], aside: Path) -> list[Plan]:
        plans: list[Plan] = plan(
            model,
            self.task.example(),
            self.task.calibration(self.batch_size),
            self.task.loss,
            target=list(self.targets),
            resume=aside,
            **settings,
        )
        return plans

    def _point(
        self, model: nn.Module, pruning: Plan | None, samples: int = 0, seed: int = 0
    ) -> CellPoint:
        removed = {"channels": 0.0, "params": 0.0, "macs": 0.0}
        whole = model
        if pruning is not None:
            assert pruning.before is not None and pruning.after is not None
            removed = _removed(pruning.before, pruning.after)
            model = apply(duplicate(whole), pruning)
        if samples:
            batches = {"samples": samples, "batch_size": self.batch_size}
            recalibrate_for(self.task, model, whole, **batches, seed=seed)
        judged = self.task.evaluate(model)
        target = str(pruning.target) if pruning is not None else "whole"
        loss = finite(judged.named().get("loss"))
        return CellPoint(target=target, **removed, quality=finite(judged.value), loss=loss)

    def _seconds(self, model: nn.Module, settings: Mapping[str, Any]) -> float:
        """CPU time of scoring the whole model once, after a first time that finds things out."""
        names = ("criterion", "aggregate", "normalize", "diagonal_norm", "block")
        chosen = {k: v for k, v in settings.items() if k in names}
        sites = trace(model, self.task.example())
        for rows in (1, settings["rows"]):
            calibration = self.task.calibration(self.batch_size)
            batches = list(itertools.islice(iter(calibration), rows))
            start = time.process_time()
            score(model, sites, batches, self.task.loss, **chosen)
        return time.process_time() - start


def _removed(before: PlanCost, after: PlanCost) -> dict[str, float]:
    return {
        "channels": 1 - after.channels / before.channels,
        "params": 1 - after.params / before.params,
        "macs": 1 - after.macs / before.macs,
    }


def _known(path: Path, weights: str, settings: dict[str, Any]) -> Cell:
    cell = parse(Cell, read_bytes(path, "a cell"), path, "a cell")
    there = {"digest of the model": cell.model, **cell.settings}
    check_same(path, there, {"digest of the model": weights, **settings})
    return cell


def curve(cells: Sequence[Cell]) -> Curve:
    """Mean and standard deviation over the seeds of one variant."""
    columns = zip(*([c.before, *c.points] for c in cells), strict=True)
    return Curve(
        criterion=cells[0].variant,
        points=[_mean(column) for column in columns],
        seeds=len(cells),
        seconds=statistics.mean(c.seconds for c in cells),
    )


def _mean(points: Sequence[CellPoint]) -> Point:
    # One seed that is not finite has no finite mean with the others.
    quality = [p.quality for p in points if p.quality is not None]
    quality = quality if len(quality) == len(points) else []
    losses = [p.loss for p in points if p.loss is not None]
    return Point(
        channels=statistics.mean(p.channels for p in points),
        params=statistics.mean(p.params for p in points),
        macs=statistics.mean(p.macs for p in points),
        quality=statistics.mean(quality) if quality else None,
        quality_std=_deviation(quality),
        loss=statistics.mean(losses) if losses else None,
        loss_std=_deviation(losses) if losses else None,
    )


def _deviation(values: Sequence[float]) -> float:
    """Of a sample; nothing is known of the spread of one."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def as_csv(cells: Iterable[Cell], metric: str) -> str:
    """Every measured point, one a line; shares are those removed, quality is the metric's."""
    text = io.StringIO()
    names = list(CellPoint.model_fields)
    heads = [metric if n == "quality" else n for n in names]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["variant", "seed", *heads, "scoring CPU seconds", "steps"])
    for cell in cells:
        for point in (cell.before, *cell.points):
            values = [getattr(point, n) for n in names]
            rounded = [f"{v:.6g}" if isinstance(v, float) else v for v in values]
            writer.writerow([cell.variant, cell.seed, *rounded, f"{cell.seconds:.6g}", cell.steps])
    return text.getvalue()
