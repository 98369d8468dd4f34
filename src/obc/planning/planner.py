"""`obc.plan`: which channels to remove, so that a cost is met or a quality is kept."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, cast, overload

from torch import nn

from obc.costs.targets import Target, parse
from obc.criteria.score import Loss
from obc.errors import ObcError
from obc.planning.places import Places, first_batches
from obc.planning.promise import Search
from obc.planning.quality import Quality
from obc.plans.plan import Plan
from obc.running.offload import at_hand
from obc.search.planner import Calibrating, prepare
from obc.tasks.evaluate import is_task
from obc.tasks.task import Task


@overload
def plan(
    model: nn.Module,
    example: Any = ...,
    batches: Iterable[Any] = ...,
    loss: Loss | None = ...,
    *,
    target: str | Target | Quality,
    task: Calibrating | None = ...,
    **settings: Any,
) -> Plan: ...
@overload
def plan(
    model: nn.Module,
    example: Any = ...,
    batches: Iterable[Any] = ...,
    loss: Loss | None = ...,
    *,
    target: Sequence[str | Target],
    task: Calibrating | None = ...,
    **settings: Any,
) -> list[Plan]: ...
@at_hand
def plan(
    model: nn.Module,
    example: Any = None,
    batches: Iterable[Any] = (),
    loss: Loss | None = None,
    *,
    target: str | Target | Quality | Sequence[str | Target],
    task: Calibrating | None = None,
    minimise: str = "macs",
    samples: int = 512,
    resume: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Plan | list[Plan]:
    """Find out which channels to remove; the model stays as it is.

    Algorithm 1 of the paper: a copy of the model shrinks step by step. Each step scores its
    channels on N = `rows` batches and removes the share p = `step` of all channels with the lowest
    scores. Towards a **cost** the last step is trimmed: the plan is at most 0.5% better than the
    target, and never short of it. Where that cannot be, an error before the first step names the
    nearest target that can. Under `torchrun` every process gets the same plan.

    A **quality** target ("accuracy-1%" is one point, "perplexity+5%", "loss+0.05", "accuracy>=92")
    gives the cheapest plan along the run that keeps it once the model is cut and recalibrated, and
    `plan.promise` says how surely: the loss on samples that nothing else has used, and its upper
    bound at 95%. `plan.frontier()` has all places that were evaluated; `plan.at` takes any of them.

    Args:
        model: stays as it is.
        example: an input of the model: a tensor, a tuple of arguments or a dict of keywords.
        batches: any iterable; each step goes on where the last one stopped, and starts over at
            the end.
        loss: `loss(model, batch)`, a scalar. Criteria of weights alone need no batches or loss.
        target: "macs=2x", "macs=50%" (kept), "params=…", "channels=…", "memory=…", "latency=…",
            a list of one unit: then one run gives a plan for each, nested in each other; or a
            quality target.
        task: of `obc.tasks`; stands for example, batches and loss where these are left out, and
            evaluates for a quality target: half of its test samples to search by, half to promise.
        minimise: for a quality target, the cost that is to be low: "macs", "params", "channels",
            "memory" or "latency".
        samples: for a quality target, how many samples recalibration uses; 0 leaves it out.
        resume: a folder; the run is written there after each step, as are evaluations, and goes on
            from there.
        settings: `criterion`, `rank`, `step`, `rows`, `ignore`, `seed`, … as listed by
            `obc.search.planner.prepare`. For a quality target the Jacobian criterion takes each
            group as one block, ranked by score ÷ cost, unless they say otherwise.

    >>> import torch, obc
    >>> net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
    >>> batches = [torch.randn(16, 8) for _ in range(4)]
    >>> smaller = plan(
    ...     net, torch.zeros(1, 8), batches, lambda m, x: m(x).square().mean(), target="macs=2x"
    ... )
    >>> smaller.before.macs, smaller.after.macs, len(smaller.kept["0"])
    (768, 384, 32)
    >>> obc.apply(net, smaller)[2]
    Linear(in_features=32, out_features=4, bias=True)
    """
    if not isinstance(target, Quality) and not _quality(target):
        run = prepare(
            model, example, batches, loss, target=target, task=task, resume=resume, **settings
        )
        plans = run.plans()
        return plans[0] if isinstance(target, (str, Target)) else plans
    quality = target if isinstance(target, Quality) else Quality.parse(str(target))
    if not is_task(task):
        raise ObcError(f"{quality} is judged by a task: plan(…, task=obc.tasks.Classification(…))")
    task = cast("Task", task)
    if settings.get("uniform"):
        raise ObcError("uniform widths are made where a run lands on a cost, not along the way")
    terms = quality.of(task.metrics)
    run = prepare(
        model,
        example,
        batches,
        loss,
        target=parse(f"{minimise}=1x"),
        task=task,
        resume=resume,
        **by_blocks(settings),
    )
    rows = first_batches(batches or task.calibration(), samples, run.settings.seed)
    with run.progress.shown():
        return Search(Places(run, task, rows, samples, resume), terms).plan()


def by_blocks(settings: dict[str, Any]) -> dict[str, Any]:
    """The ranking that is best where recalibration follows, unless settings say otherwise."""
    if settings.get("criterion") == "redundancy":
        return {"rank": "score/cost", **settings}
    if settings.get("criterion", "jacobian") != "jacobian":
        return settings
    return {"criterion": "jacobian", "block": "group", "rank": "score/cost", **settings}


def as_printed(settings: dict[str, Any]) -> dict[str, Any]:
    """The ranking of the paper: the sum over structural parameters, whatever a channel costs."""
    if settings.get("criterion", "jacobian") != "jacobian":
        return settings
    return {"criterion": "jacobian", "block": "member", "rank": "score", **settings}


def _quality(target: Any) -> bool:
    """Whether a target is about quality; a list of several has no place here."""
    if isinstance(target, (list, tuple)) and any(map(Quality.written, target)):
        raise ObcError("one quality target at a time; plan.at and plan.frontier() have the others")
    return Quality.written(target)
