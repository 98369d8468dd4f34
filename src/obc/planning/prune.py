"""`obc.prune`: plan, cut and recalibrate a copy of a model in one call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Literal, NamedTuple, overload

from torch import nn

from obc.costs.targets import Target
from obc.criteria.score import Loss
from obc.errors import ObcError
from obc.planning.places import first_batches
from obc.planning.planner import as_printed, by_blocks
from obc.planning.planner import plan as make_plan
from obc.planning.quality import Quality
from obc.plans.plan import Plan
from obc.recalibration.account import Recalibration
from obc.recalibration.lockstep import Call
from obc.recalibration.recalibrate import call_by, recalibrate, said_by
from obc.running.checks import check_flag, check_function, check_whole
from obc.running.modules import duplicate
from obc.running.offload import at_hand
from obc.search.planner import Calibrating, check_task
from obc.surgery.slicing import apply


class Pruned(NamedTuple):
    """A pruned model, the plan by which it was cut, and the account of its recalibration."""

    model: nn.Module
    plan: Plan
    recalibration: Recalibration | None


@overload
def prune(
    model: nn.Module,
    example: Any = ...,
    batches: Iterable[Any] = ...,
    loss: Loss | None = ...,
    *,
    target: str | Target | Quality,
    task: Calibrating | None = ...,
    samples: int = ...,
    call: Call | None = ...,
    paper: bool = ...,
    details: Literal[False] = ...,
    **settings: Any,
) -> nn.Module: ...
@overload
def prune(
    model: nn.Module,
    example: Any = ...,
    batches: Iterable[Any] = ...,
    loss: Loss | None = ...,
    *,
    target: str | Target | Quality,
    task: Calibrating | None = ...,
    samples: int = ...,
    call: Call | None = ...,
    paper: bool = ...,
    details: Literal[True],
    **settings: Any,
) -> Pruned: ...
@at_hand
def prune(
    model: nn.Module,
    example: Any = None,
    batches: Iterable[Any] = (),
    loss: Loss | None = None,
    *,
    target: str | Target | Quality,
    task: Calibrating | None = None,
    samples: int = 512,
    call: Call | None = None,
    paper: bool = False,
    details: bool = False,
    **settings: Any,
) -> nn.Module | Pruned:
    """A copy of the model that meets the target, recalibrated; the model itself stays as it is.

    The channels are chosen by `obc.plan`, with the Jacobian criterion of each group as one block,
    ranked by score ÷ cost, unless `settings` say otherwise; what stays is then fitted to what the
    original computes, by `obc.recalibrate`. The copy remembers its plan: `obc.save` keeps it.

    Args:
        model: Any traced model.
        example: A tensor, a tuple of arguments or a dict of keyword arguments to trace it with.
        batches: Calibration data: a list or a loader, read more than once.
        loss: `loss(model, batch)`, a scalar; criteria of weights alone need none.
        target: What the copy may cost, as for `obc.plan`: "macs=2x", "params=50%", …; or how much
            worse it may be: "accuracy-1%", "perplexity+5%", …, judged by the task.
        task: Of `obc.tasks`; stands for example, batches and loss where these are left out.
        samples: How many samples recalibration uses; 0 leaves the cut as it is.
        call: How recalibration calls the model with a batch, as for `obc.recalibrate`.
        paper: The paper's own procedure: the Jacobian criterion as printed, not divided by cost,
            and nothing is recalibrated.
        details: Return (model, plan, recalibration) instead of the model alone.
        settings: For `obc.plan`: `criterion`, `rank`, `step`, `rows`, `ignore`, …

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
    >>> batches = [torch.randn(16, 8) for _ in range(8)]
    >>> small = prune(
    ...     net, torch.zeros(1, 8), batches, lambda m, x: m(x).square().mean(), target="macs=2x"
    ... )
    >>> small[2]
    Linear(in_features=32, out_features=4, bias=True)
    """
    check_flag("paper", paper)
    check_flag("details", details)
    check_whole("samples", samples, 0)
    if call is not None:  # else it would fail when the plan is made
        check_function("call", call)
    if isinstance(batches, Iterator):
        raise ObcError(
            "batches are read more than once; pass a list or a loader, not an iterator",
            section="batches-and-loss",
        )
    if not isinstance(target, (str, Target, Quality)):
        raise ObcError("obc.prune makes one model; for several targets use obc.plan and obc.apply")
    if task is not None:
        check_task(task)
        example = task.example() if example is None else example
        batches, loss = batches or task.calibration(), loss or task.loss
        call = call or partial(call_by, task)
    samples = 0 if paper else samples
    settings = as_printed(settings) if paper else by_blocks(settings)
    settings = {"target": target, "task": task, "samples": samples, **settings}
    plan = make_plan(model, example, batches, loss, **settings)
    seed = settings.get("seed", 0)
    if plan.promise is not None:  # the very batches that it was judged with
        batches = first_batches(batches, samples, seed)
    small = apply(duplicate(model), plan, example=example)
    account = None
    if samples:
        account = recalibrate(
            small,
            model,
            batches,
            call=call,
            samples=samples,
            **said_by(task),
            example=example,
            seed=seed,
        )
    return Pruned(small, plan, account) if details else small
