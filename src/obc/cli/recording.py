"""The record of a run from what a command has at hand; the report is drawn from it."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import nn

from obc.cli.measure import Measured
from obc.criteria.criterion import make
from obc.criteria.reduce import reduce
from obc.criteria.score import Scorer
from obc.files.reference import reference
from obc.plans.plan import Plan
from obc.reporting import fill
from obc.reporting.record import Figure, Record
from obc.search.choice import chosen
from obc.tasks.evaluation import Evaluation
from obc.tasks.task import Task
from obc.tracing.sites import Sites
from obc.tracing.tracer import trace

_HEAT_ROWS = 10
_DRAWN_ROWS = 8  # of text a row takes seconds, and a picture of the scores needs no more


def begin(title: str, model: nn.Module, task: Task, seed: int) -> Record:
    """A record with all that is known before the work starts."""
    return Record(
        title=title,
        command=shlex.join(["obc", *sys.argv[1:]]),
        model=reference(model),
        data=task.name,
        metric=task.metrics[0],
        protocol=task.protocol,
        seed=seed,
        environment=fill.environment(),
    )


def add_figures(record: Record, rows: Sequence[Measured]) -> None:
    """The summary: what there was, what is left, and the quality on the way."""
    before, after = rows[0], rows[-1]
    text = after.evaluation.metric.text
    way = " → ".join(f"{text(m.evaluation.value)} {m.name}" for m in rows[:-1])
    record.figures += [
        quality(after.evaluation, way),
        Figure(name="MACs", value=_times(before.macs, after.macs), note="fewer"),
        Figure(name="parameters", value=_times(before.params, after.params), note="fewer"),
        Figure(
            name="one example",
            value=round(after.milliseconds, 2),
            unit="ms",
            note=f"{before.milliseconds:.2f} before",
        ),
    ]


def add_time(record: Record, runtime: str, seconds: Sequence[float]) -> None:
    """What one example takes in a runtime, before and after."""
    before, after = (1e3 * s for s in seconds)
    note = f"{before:.2f} before, {before / after:.2f}x"
    record.figures.append(Figure(name=f"in {runtime}", value=round(after, 2), unit="ms", note=note))


def quality(evaluation: Evaluation, note: str, at: str = "") -> Figure:
    """The metric that counts, as a card; the arrow says which way is better."""
    metric, value = evaluation.metric, evaluation.value
    name = f"{metric.label or metric.name} {metric.arrow}"
    shown = round(value, metric.digits) if math.isfinite(value) else str(value)
    return Figure(name=f"{name} {at}".rstrip(), value=shown, unit=metric.unit, note=note)


def _times(before: int, after: int) -> str:
    return f"{before / max(after, 1):.2f}x"


def add_pruning(
    record: Record,
    model: nn.Module,
    task: Task,
    batch_size: int,
    plans: Mapping[str, Plan],
    criteria: Sequence[str],
    measured: Mapping[int, Measured],
) -> None:
    """What plans did to a model, which is still whole: widths, steps, scores and a heat map.

    Args:
        record: to be added to.
        model: the whole model.
        task: whose calibration batches scores are taken on.
        batch_size: of those.
        plans: the plans by name, the last of which is drawn step by step.
        criteria: whose scores are drawn.
        measured: what was evaluated after which step of the last plan, 0 being the model before.
    """
    sites = trace(model, task.example())
    last = list(plans.values())[-1]
    record.widths = fill.widths(sites, plans)
    record.steps = fill.steps(last, {n: m.evaluation for n, m in measured.items()})
    seed, rows = record.seed or 0, int(last.settings.get("rows") or 1)
    rows = rows if batch_size > 1 else min(rows, _DRAWN_ROWS)
    asked = str(last.settings.get("sites", ""))
    open_to = chosen(sites, asked.split(", ") if asked else ())
    names = [site.name for site in sites if site.name in open_to]
    assert last.before is not None and last.after is not None
    # Where a score is divided by cost, no one score parts what goes from what stays.
    by_score = last.settings.get("rank", "score") == "score"
    share = 1 - last.after.channels / last.before.channels if by_score else None
    for name in criteria:
        batches = _first(task, batch_size, rows, seed)
        criterion = make(name, **_block(last, name))
        totals = Scorer(model, sites, task.loss, criterion, names=names).totals(batches)
        saliency = {site: reduce(totals[site], "sum", "none") for site in names}
        finite = {site: values[values.isfinite()] for site, values in saliency.items()}
        record.scores.append(fill.scores(name, finite, share))
    layer = _middle(sites)
    if layer is not None:
        batches = _first(task, batch_size, _HEAT_ROWS, seed)
        record.heats.append(fill.heat(model, batches, task.loss, layer))


def _block(plan: Plan, criterion: str) -> dict[str, Any]:
    """The blocks by which a plan scored, if this was its criterion."""
    name = "criterion.block"
    planned = criterion == plan.settings.get("criterion") and name in plan.settings
    return {"block": plan.settings[name]} if planned else {}


def _first(task: Task, batch_size: int, count: int, seed: int) -> list[Any]:
    """The first calibration batches of a round with this seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return list(islice(iter(task.calibration(batch_size)), count))


def _middle(sites: Sites) -> str | None:
    """A layer that writes a site in the middle of the model."""
    site = sites[len(sites) // 2]
    return next((m.layer for m in site.members if m.role == "out" and m.param == "weight"), None)
