"""What obc does where the user says nothing, read from the code that does it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import obc
from benchmarks.study.sources import table
from obc.cli.inputs import planned
from obc.planning.planner import as_printed, by_blocks
from obc.search.planner import prepare

TASKS: dict[str, Any] = {
    "images": obc.tasks.Classification,
    "detectors": obc.tasks.Detection,
    "text": obc.tasks.Language,
}


def defaults() -> str:
    """A line for each verb: the block, the rank, N, p and the samples of recalibration."""
    plan = {n: p.default for n, p in inspect.signature(prepare).parameters.items()}
    plan = {"block": "member", **{name: plan[name] for name in ("rank", "rows", "step", "pace")}}
    samples = inspect.signature(obc.prune).parameters["samples"].default
    whole = {**plan, **by_blocks({}), "samples": samples}
    rows = [
        ["`obc.plan`, a cost as target", *_cells(plan)],
        ["`obc.plan`, a quality as target; `obc.prune`", *_cells(whole)],
    ]
    for words, task in TASKS.items():
        settings = by_blocks(planned(task, "jacobian", {}))
        rows.append([f"`obc prune`, {words}", *_cells({**plan, **settings})])
    rows.append(["`obc.prune(…, paper=True)`", *_cells({**plan, **as_printed({})})])
    printed = as_printed(planned(TASKS["images"], "jacobian", {}, paper=True))
    rows.append(["`obc prune --paper`, images", *_cells({**plan, **printed, "samples": 0})])
    heads = ["layers of a channel", "ranked by", "N", "p", "recalibrated on"]
    return table(["", *heads], rows)


def _cells(settings: Mapping[str, Any]) -> list[str]:
    rows = f"{settings['rows']}"
    if "batch_size" in settings:
        rows += f" × {settings['batch_size']}"
    if settings.get("expected"):
        rows += ", single samples"
    samples = settings.get("samples")
    return [
        {"member": "summed", "group": "one block"}[settings["block"]],
        settings["rank"].replace("/", " ÷ "),
        rows,
        f"{Fraction(settings['step']).limit_denominator(1000)} of {settings['pace']}",
        f"{samples} samples" if samples else "nothing",
    ]
