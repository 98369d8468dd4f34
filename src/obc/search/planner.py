"""Algorithm 1 with all its settings: score, remove the lowest, score what is left."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from obc.costs.targets import Target, parse_all
from obc.criteria.criterion import Criterion
from obc.criteria.score import Loss
from obc.disk.location import location
from obc.errors import ObcError
from obc.running.checks import names
from obc.search.algorithm import Run
from obc.search.settings import Settings


@runtime_checkable
class Calibrating(Protocol):
    """What planning and recalibration ask of a task."""

    def example(self) -> Any:
        """An input of the model."""

    def calibration(self) -> Iterable[Any]:
        """Batches to score with, as often as they are asked for."""

    def inputs(self, batch: Any, /) -> Any:
        """What of a batch the model takes."""

    def loss(self, model: Any, batch: Any, /) -> Tensor:
        """The mean loss of a batch."""


def prepare(
    model: nn.Module,
    example: Any = None,
    batches: Iterable[Any] = (),
    loss: Loss | None = None,
    *,
    target: str | Target | Sequence[str | Target],
    task: Calibrating | None = None,
    criterion: str | Criterion = "jacobian",
    aggregate: str = "sum",
    normalize: str = "none",
    scope: str = "global",
    rank: str = "score",
    step: float = 1 / 400,
    pace: str = "channels",
    sites: str | Sequence[str] = (),
    uniform: bool = False,
    rows: int = 50,
    carry: float = 0.0,
    ignore: str | Sequence[str] = (),
    max_ratio: float | Mapping[str, float] = 1.0,
    min_channels: int | Mapping[str, int] = 1,
    round_to: int | None = None,
    checkpoint: bool = False,
    seed: int = 0,
    resume: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Run:
    """A run of Algorithm 1, ready for its first step; `Run.plans` takes all of them.

    Args:
        model: stays as it is.
        example: an input of the model: a tensor, a tuple of arguments or a dict of keywords.
        batches: any iterable; each step goes on where the last one stopped, and starts over at
            the end.
        loss: `loss(model, batch)`, a scalar. Criteria of weights alone need no batches or loss.
        task: of `obc.tasks`; stands for example, batches and loss where these are left out.
        target: "macs=2x", "macs=50%" (kept), "params=…", "channels=…", "memory=…", "latency=…",
            or a list of one unit: then one run gives a plan for each, nested in each other.
        criterion: a name or an instance, as for `obc.score`.
        aggregate: how scores of a channel's layers become one: "sum", "mean" or "max".
        normalize: "none", or by the "mean" or "max" of a site.
        scope: who competes: all channels ("global"), those of one site, all sites losing the same
            share ("local"), or sites of the same shape ("isomorphic").
        rank: "score", or "score/cost" to divide by what a channel saves now.
        step: p, the share of all channels that one step removes.
        pace: what `step` is a share of: "channels", or "cost" in the target's unit; an attention
            head holds as much as a hundred channels beside it.
        sites: which sites lose channels: kinds ("ffn", "heads", "experts", "hidden", the residual
            width) or patterns of site names; all of them if there are none.
        uniform: give all sites of a kind one width, as plain configurations of other libraries
            want it; the plan may then be further below the target than 0.5%, and says so.
        rows: N, the batches of one step.
        carry: the share of the rows that later steps do without, using instead what earlier ones
            showed, which counts less the more has gone since.
        ignore: names or patterns of layers that keep their channels.
        max_ratio: the largest share a site may lose, for all or by site name.
        min_channels: the fewest channels a site may keep, for all or by site name.
        round_to: keep widths at its multiples; 8 for latency targets, what was measured to be
            best for those in a runtime, otherwise 1.
        checkpoint: score with activation checkpointing by block, as for `obc.score`.
        seed: of everything that is drawn.
        resume: a folder; the run is written there after each step and goes on from there.
        options: of the criterion, such as `expected=True` or `block="group"`.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
    >>> (plan,) = prepare(net, torch.zeros(1, 8), target="macs=2x", criterion="l1").plans()
    >>> plan.after.macs
    384
    """
    targets = parse_all(target)
    if task is not None:
        check_task(task)
        example = task.example() if example is None else example
        batches, loss = batches or task.calibration(), loss or task.loss
    if example is None:
        raise ObcError(
            "say what the model takes: an example, or a task that has one", section="the-model"
        )
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
        round_to=targets[0].round_to if round_to is None else round_to,
        ignore=names("ignore", ignore, "a layer"),
        seed=seed,
        pace=pace,
        sites=names("sites", _parted(sites), "a site"),
        uniform=uniform,
        checkpoint=checkpoint,
    )
    folder = None if resume is None else location(resume, "resume")
    return Run(model, example, batches, loss, targets, settings, folder)


def check_task(task: object) -> None:
    """Refuse what is no task."""
    missing = [v for v in ("example", "calibration", "loss") if not callable(getattr(task, v, 0))]
    if missing:
        lacks = ", ".join(missing)
        raise ObcError(f"task is one of obc.tasks, or one of your own; {task!r} lacks {lacks}")


def _parted(sites: str | Sequence[str]) -> Sequence[str]:
    """Names in one string, as on the command line, stand between commas."""
    return [name for name in sites.split(",") if name] if isinstance(sites, str) else sites
