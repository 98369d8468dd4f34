"""The curve of quality against cost: one run to a cost, evaluated at places along the way."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from torch import nn

from obc.costs.targets import Target, parse
from obc.criteria.score import Loss
from obc.planning.places import Places, first_batches
from obc.planning.planner import by_blocks
from obc.planning.promise import Search
from obc.planning.quality import Quality
from obc.plans.plan import Plan
from obc.search.planner import prepare
from obc.tasks.task import Task


def plan_along(
    model: nn.Module,
    example: Any = None,
    batches: Iterable[Any] = (),
    loss: Loss | None = None,
    *,
    task: Task,
    until: str | Target = "macs=4x",
    places: int = 8,
    samples: int = 512,
    resume: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Plan:
    """A plan as far as a cost, with the quality at places that lie evenly along the way.

    Each is cut, recalibrated and evaluated on all test data, and compared with the whole model
    sample by sample. Bounds hold for each place alone: whoever picks one by eye has looked at all.

    Args:
        model: stays as it is.
        example: as for `obc.plan`.
        batches: as for `obc.plan`.
        loss: as for `obc.plan`.
        task: evaluates, and stands for the three before where they are left out.
        until: the cost at which the run ends.
        places: how many are evaluated, beside the whole model.
        samples: how many recalibration uses; 0 leaves it out.
        resume: a folder, as for `obc.plan`.
        settings: as for `obc.plan` with a quality target.
    """
    target = parse(until)
    run = prepare(
        model, example, batches, loss, target=target, task=task, resume=resume,
        **by_blocks(settings),
    )  # fmt: skip
    rows = first_batches(batches or task.calibration(), samples, run.settings.seed)
    metric = task.metrics[0]
    terms = Quality(metric.name.lower(), "-" if metric.higher else "+", 0.0, True).of([metric])
    here = Places(run, task, rows, samples, resume)
    search = Search(here, terms)
    search.judged(0, "test")
    whole, limit = here.cost(0), run.reach.limit(target)
    with run.progress.shown():
        step = 0
        for number in range(1, places + 1):
            mark = whole + (limit - whole) * number / places
            while here.cost(step) > mark and (step < here.last or run.advance()):
                step += 1
            search.judged(step, "test")
    return here.plan(step).model_copy(update={"target": str(target), "places": search.frontier()})
