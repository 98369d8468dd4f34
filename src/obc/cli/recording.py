"""The record of a run from what a command has at hand; the report is drawn from it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from obc.cli.inputs import Batches, loss
from obc.cli.measure import Measured
from obc.criteria.score import score
from obc.files.reference import reference
from obc.plans.plan import Plan
from obc.reporting import fill
from obc.reporting.record import Figure, Record
from obc.tracing.sites import Sites
from obc.tracing.tracer import trace

_HEAT_ROWS = 10


def begin(title: str, model: nn.Module, data: str, seed: int) -> Record:
    """A record with all that is known before the work starts."""
    return Record(
        title=title,
        command=shlex.join(["obc", *sys.argv[1:]]),
        model=reference(model),
        data=data,
        seed=seed,
        environment=fill.environment(),
    )


def add_figures(record: Record, before: Measured, after: Measured) -> None:
    """The summary: what there was, and what is left."""
    record.figures += [
        Figure(
            name="accuracy",
            value=round(after.score.top1, 2),
            unit="%",
            note=f"{before.score.top1:.2f} before",
        ),
        Figure(name="MACs", value=_times(before.macs, after.macs), note="fewer"),
        Figure(name="parameters", value=_times(before.params, after.params), note="fewer"),
        Figure(
            name="one image",
            value=round(after.milliseconds, 2),
            unit="ms",
            note=f"{before.milliseconds:.2f} before",
        ),
    ]


def _times(before: int, after: int) -> str:
    return f"{before / max(after, 1):.2f}x"


def add_pruning(
    record: Record,
    model: nn.Module,
    example: Any,
    batches: Batches,
    plans: Mapping[str, Plan],
    criteria: Sequence[str],
    measured: Mapping[int, Measured],
) -> None:
    """What plans did to a model, which is still whole: widths, steps, scores and a heat map.

    `measured` has what was evaluated after which step of the last plan, 0 being the model before.
    """
    sites = trace(model, example)
    last = list(plans.values())[-1]
    record.widths = fill.widths(sites, plans)
    record.steps = fill.steps(last, {n: m.score for n, m in measured.items()})
    seed, rows = record.seed or 0, int(last.settings.get("rows") or 1)
    assert last.before is not None and last.after is not None
    share = 1 - last.after.channels / last.before.channels
    for name in criteria:
        found = score(model, sites, batches.first(rows, seed), loss, name)
        record.scores.append(
            fill.scores(name, {n: own[own.isfinite()] for n, own in found.items()}, share)
        )
    layer = _middle(sites)
    if layer is not None:
        record.heats.append(fill.heat(model, batches.first(_HEAT_ROWS, seed), loss, layer))


def _middle(sites: Sites) -> str | None:
    """A layer that writes a site in the middle of the model."""
    site = sites[len(sites) // 2]
    return next((m.layer for m in site.members if m.role == "out" and m.param == "weight"), None)
