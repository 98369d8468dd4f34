"""`obc compare`: the criteria, or an ablation of one, on any model and task."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from torch import nn

from obc.cli import recording
from obc.cli.arguments import ELSEWHERE, DataName, Folder, Model, Pretrained, TaskName, Weights
from obc.cli.inputs import example_of, model_of, task_of
from obc.cli.output import Output, Result
from obc.disk.claim import claimed
from obc.disk.writing import write
from obc.errors import ObcError
from obc.experiments import comparison as library
from obc.experiments.comparison import (
    ABLATIONS,
    CRITERIA,
    RECALIBRATED,
    SHARES,
    Cell,
    Comparison,
    Variant,
)
from obc.files.reference import reference
from obc.models.resolver import options_of
from obc.reporting.curves import draw_comparison
from obc.reporting.figures import best_points
from obc.reporting.page import report
from obc.reporting.record import Curve, Point, Record
from obc.tasks.evaluation import Metric
from obc.tasks.task import Task
from obc.tuning.recipe import Recipe
from obc.tuning.trainer import finetune

_KEEP = ",".join(f"{100 * share:g}" for share in SHARES)


def compare(
    out: Output,
    model: Model,
    *,
    data: DataName = None,
    task: TaskName = None,
    folder: Folder,
    criteria: Annotated[str, typer.Option(help="Which, with commas between.")] = ",".join(CRITERIA),
    ablate: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Instead of the criteria: {', '.join(ABLATIONS)}; may be given again.",
            autocompletion=lambda: list(ABLATIONS),
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How often all is repeated.")] = 3,
    unit: Annotated[str, typer.Option(help="The budget: macs, params or channels.")] = "macs",
    keep: Annotated[str, typer.Option(help="The shares kept, in per cent.")] = _KEEP,
    rows: Annotated[int, typer.Option(min=1, help="N: batches for each scoring.")] = 50,
    step: Annotated[float, typer.Option(help="p: share of all channels for each step.")] = 0.02,
    batch_size: Annotated[int, typer.Option(min=1)] = 128,
    recalibrate: Annotated[
        int,
        typer.Option(
            min=0, help="Samples to recalibrate on, for a second line of each criterion; 0: none."
        ),
    ] = 0,
    train: Annotated[
        str | None,
        typer.Option(
            metavar="RECIPE", help="Train a model of its own for each seed, by this recipe."
        ),
    ] = None,
    weights: Weights = None,
    pretrained: Pretrained = False,
) -> Result:
    """Compare criteria with the same grouping, aggregation and budget, without fine-tuning.

    With --recalibrate each criterion has a second line, of the same plans with what stays refitted.

    Writes tables (CSV, JSON), figures (PNG, SVG) and a report. Finished cells are kept: the same
    command goes on where it stopped, and more seeds or an ablation may be added later.

    Example: obc compare runs/demo/dense --data digits --rows 10 --out runs/compare

    Example: obc compare resnet20 --train resnet20-digits --data digits --ablate rows --ablate
    scope --out runs/compare
    """
    groups = _groups(criteria, ablate or [], rows, step)
    targets = _targets(unit, keep)
    purpose = task_of(data, task, model)
    if not (Path(model).is_dir() or weights or pretrained or train):
        raise ObcError(
            f"'{model}' would be untrained: give --weights FILE, --pretrained, or --train RECIPE"
        )
    facts: dict[str, Any] = {"command": "compare", "model": model, "data": data, "task": task}
    facts |= {"weights": weights, "train": train, "unit": unit, "keep": keep, "rows": rows}
    facts |= {"step": step, "batch size": batch_size}
    with claimed(folder, facts, advice=ELSEWHERE):
        whole = model_of(model, purpose, weights, pretrained)
        example_of(whole, purpose)  # a model that does not take it is refused before any work
        experiment = Comparison(
            folder=folder,
            task=purpose,
            targets=targets,
            settings={"criterion": "jacobian", "rows": rows, "step": step},
            batch_size=batch_size,
            samples=recalibrate,
        )
        recipe = Recipe.load(train) if train is not None else None
        models = _Models(out, model, whole, purpose, folder / "models", recipe)
        cells = _cells(out, experiment, models, groups, seeds)
        record = recording.begin(_title(whole, purpose), whole, purpose, 0)
        return _finish(out, folder, record, cells)


def _title(model: nn.Module, task: Task) -> str:
    name, _ = options_of(reference(model) or type(model).__name__)
    return f"{name} on {task.name}, without fine-tuning"


def _groups(
    criteria: str, ablate: Sequence[str], rows: int, step: float
) -> dict[str, list[Variant]]:
    if ablate:
        return {f"ablation-{name}": library.ablation(name, rows, step) for name in ablate}
    return {"criteria": library.criteria(n.strip() for n in criteria.split(","))}


def _targets(unit: str, keep: str) -> list[str]:
    return [f"{unit}={share.strip()}%" for share in keep.split(",")]


@dataclass
class _Models:
    """The model of each seed: the one given, or one trained for it."""

    out: Output
    name: str
    trained: nn.Module
    task: Task
    folder: Path
    recipe: Recipe | None

    def __call__(self, seed: int) -> nn.Module:
        if self.recipe is None:
            return self.trained
        model = model_of(self.name, self.task, seed=seed)
        recipe = self.recipe.changed(seed=seed, prune=None, sparse=None, distill=0.0)
        with self.out.doing(f"training the model of seed {seed}"):
            finetune(model, self.task, recipe, out=self.folder / f"seed-{seed}")
        return model.eval()


def _cells(
    out: Output,
    experiment: Comparison,
    models: _Models,
    groups: dict[str, list[Variant]],
    seeds: int,
) -> dict[str, dict[str, list[Cell]]]:
    """All cells of every group by variant, the same model for all variants of a seed."""
    ways = (False, True) if experiment.samples else (False,)
    lines = [(g, v, way) for g, variants in groups.items() for v in variants for way in ways]
    cells: dict[str, dict[str, list[Cell]]] = {group: {} for group in groups}
    failed: dict[str, str] = {}
    clock = _Clock(seeds * len(lines))
    for seed in range(seeds):
        model = models(seed)
        for group, variant, recalibrated in lines:
            if variant.name in failed:
                continue
            with out.doing(f"{variant.name}, seed {seed} ({clock.next()})"):
                try:
                    cell = experiment.cell(model, variant, seed, recalibrated=recalibrated)
                except ObcError as error:
                    failed[variant.name] = str(error)
                    continue
            cells[group].setdefault(cell.variant, []).append(cell)
    for group, name in itertools.product(groups, failed):
        cells[group].pop(name, None)
        cells[group].pop(f"{name}{RECALIBRATED}", None)
    if not any(cells.values()):
        raise ObcError(next(iter(failed.values())))
    for name, reason in failed.items():
        out.note(f"{name} is left out: {reason}")
    return cells


class _Clock:
    """How far a comparison is, and how long it will take."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._start = total, 0, time.monotonic()

    def next(self) -> str:
        left = ""
        if self._done:
            each = (time.monotonic() - self._start) / self._done
            left = f", about {each * (self._total - self._done) / 60:.0f} min left"
        self._done += 1
        return f"{self._done} of {self._total}{left}"


def _finish(
    out: Output, folder: Path, record: Record, groups: dict[str, dict[str, list[Cell]]]
) -> Result:
    """Tables, figures and the report of all groups; the first one's curves are in the report."""
    result: dict[str, Any] = {"folder": folder, "files": []}
    for group, cells in groups.items():
        if not cells:
            continue
        curves = [library.curve(of_seeds) for of_seeds in cells.values()]
        measured = [cell for of_seeds in cells.values() for cell in of_seeds]
        means = [c.model_dump(mode="json") for c in curves]
        facts = {
            "command": record.command,
            "title": record.title,
            "metric": record.metric.name,
            "protocol": record.protocol,
            "curves": means,
        }
        _write(folder / f"{group}.csv", library.as_csv(measured, record.metric.name))
        _write(folder / f"{group}.json", json.dumps(facts, indent=1))
        for kind in ("png", "svg"):
            draw_comparison(curves, folder / f"{group}.{kind}", record.title, record.metric)
        result["files"] += [f"{group}.{kind}" for kind in ("csv", "json", "png", "svg")]
        result[group] = means
        record.comparison = record.comparison or curves
        out.say(comparison_table(f"{group}: {record.title}", measured[0], curves, record.metric))
    record.warnings = list(out.notes)
    record.save(folder)
    result["report"] = report(folder)
    out.say(f"tables, figures and the report are in {folder}")
    return result


def _write(path: Path, text: str) -> None:
    write(path, lambda aside: aside.write_text(text, encoding="utf-8"))


def comparison_table(title: str, cell: Cell, curves: Sequence[Curve], metric: Metric) -> Table:
    """The metric at each budget, mean ± deviation; the best at each stands in bold."""
    seeds = curves[0].seeds or 1
    over = f", mean ± std over {seeds} seeds" if seeds > 1 else ""
    table = Table(title=f"{title}: {metric.title}{over}", title_justify="left")
    table.add_column("", no_wrap=True)
    for name in ("mean", *(escape(p.target) for p in cell.points), "CPU s"):
        table.add_column(name, justify="right", no_wrap=True)
    for curve, best in zip(curves, best_points(curves, metric), strict=True):
        after = curve.points[1:]
        values = [p.quality for p in after if p.quality is not None]
        cells = [
            Text(_spread(p, seeds, metric), style="bold" if n in best else "")
            for n, p in enumerate(after, 1)
        ]
        mean = sum(values) / len(values) if len(values) == len(after) else None
        table.add_row(curve.criterion, _number(mean, metric), *cells, f"{curve.seconds:.3f}")
    table.caption, table.caption_justify = "CPU s: of one scoring of the whole model", "left"
    return table


def _spread(point: Point, seeds: int, metric: Metric) -> str:
    text = _number(point.quality, metric)
    if seeds == 1 or point.quality is None:
        return text
    return f"{text} ± {_number(point.quality_std, metric)}"


def _number(value: float | None, metric: Metric) -> str:
    return "not finite" if value is None else f"{value:.{_digits(metric)}f}"


def _digits(metric: Metric) -> int:
    """One less than elsewhere: seeds differ by more than that."""
    return max(metric.digits - 1, 0)
