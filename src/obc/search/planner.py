"""`obc.plan`: Algorithm 1. Score, remove the lowest, score what is left, until the target."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload

from torch import nn

from obc.costs.targets import Target, parse_all
from obc.criteria.criterion import Criterion
from obc.criteria.score import Loss
from obc.plans.plan import Plan
from obc.search.algorithm import Run
from obc.search.settings import Settings


@overload
def plan(
    model: nn.Module,
    example: Any,
    batches: Iterable[Any] = ...,
    loss: Loss | None = ...,
    *,
    target: str | Target,
    **settings: Any,
) -> Plan: ...
@overload
def plan(
    model: nn.Module,
    example: Any,
    batches: Iterable[Any] = ...,
    loss: Loss | None = ...,
    *,
    target: Sequence[str | Target],
    **settings: Any,
) -> list[Plan]: ...
def plan(
    model: nn.Module,
    example: Any,
    batches: Iterable[Any] = (),
    loss: Loss | None = None,
    *,
    target: str | Target | Sequence[str | Target],
    criterion: str | Criterion = "jacobian",
    aggregate: str = "sum",
    normalize: str = "none",
    scope: str = "global",
    rank: str = "score",
    step: float = 1 / 400,
    rows: int = 50,
    carry: float = 0.0,
    ignore: str | Sequence[str] = (),
    max_ratio: float | Mapping[str, float] = 1.0,
    min_channels: int | Mapping[str, int] = 1,
    round_to: int | None = None,
    seed: int = 0,
    resume: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Plan | list[Plan]:
    """Find out which channels to remove so that a target is met; the model stays as it is.

    A copy of the model shrinks step by step: each step scores its channels on `rows` batches and
    removes the share `step` of all channels with the lowest scores. The last step is trimmed: the
    plan is at most 0.5% better than the target, and never short of it. Where that cannot be, an
    error before the first step names the nearest target that can.

    `target` is "macs=2x", "macs=50%" (kept), "params=…", "channels=…", "latency=…", or a list of
    one unit: then one run gives a plan for each, nested in each other. `scope` says who competes:
    all channels ("global"), those of one site, all sites losing the same share ("local"), or
    sites of the same shape ("isomorphic"). `rank="score/cost"` divides scores by what a channel
    saves now. `max_ratio` and `min_channels` bound what a site loses, for all or by site name;
    `round_to` keeps widths at its multiples (8 for latency targets). Layers named in `ignore`
    keep their channels. Other options go to the criterion.

    Each step goes on in `batches` where the last one stopped, and starts over at their end. With
    `carry`, later steps take that share fewer rows and use what earlier ones showed, which counts
    less the more has gone since. After each step the run is written to the folder `resume`;
    started again, it goes on from there. Under `torchrun` every process gets the same plan.

    >>> import torch, obc
    >>> net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
    >>> batches = [torch.randn(16, 8) for _ in range(4)]
    >>> found = plan(
    ...     net, torch.zeros(1, 8), batches, lambda m, x: m(x).square().mean(), target="macs=2x"
    ... )
    >>> found.before.macs, found.after.macs, len(found.kept["0"])
    (768, 384, 32)
    >>> obc.apply(net, found)[2]
    Linear(in_features=32, out_features=4, bias=True)
    """
    targets = parse_all(target)
    settings = Settings(
        criterion=criterion,
        options=options,
        aggregate=aggregate,
        normalize=normalize,
        scope=scope,
        rank=rank,
        step=step,
        rows=rows,
        carry=carry,
        max_ratio=max_ratio,
        min_channels=min_channels,
        round_to=(8 if targets[0].unit == "latency" else 1) if round_to is None else round_to,
        ignore=[ignore] if isinstance(ignore, str) else list(ignore),
        seed=seed,
    )
    run = Run(model, example, batches, loss, targets, settings, resume)
    plans = run.plans()
    return plans[0] if isinstance(target, (str, Target)) else plans
