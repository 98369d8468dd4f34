"""Parts of a record from the objects of a run: plans, scores, tuning, the machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from obc.errors import ObcError, closest
from obc.plans.plan import Plan
from obc.recalibration.account import Recalibration
from obc.reporting.record import (
    Environment,
    Epoch,
    Fit,
    Heat,
    Judged,
    Recalibrated,
    Scores,
    Step,
    Tuning,
    Widths,
    finite,
)
from obc.running.forward import evaluating
from obc.tasks.evaluation import Evaluation
from obc.tracing.sites import Sites
from obc.tuning.trainer import Tuned, history_key

_BARS = 40
_SIDE = 12  # rows and columns of a heat map that one filter takes


def environment() -> Environment:
    """This machine and the versions in use; its network name is nobody's business.

    >>> environment().torch == torch.__version__
    True
    """
    try:
        own = version("obc")
    except PackageNotFoundError:  # run from a checkout
        own = "unknown"
    return Environment(
        machine=_processor(),
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
        obc=own,
    )


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine() or "unknown"


def widths(sites: Sites, plans: Mapping[str, Plan]) -> Widths:
    """Every site's width before, and after each of the named plans.

    >>> import obc
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> sites = obc.trace(net, torch.zeros(1, 4))
    >>> widths(sites, {"2x": Plan.from_kept(sites, {"0": [0, 2, 5]})}).after
    {'2x': {'0': 3}}
    """
    return Widths(
        before={s.name: s.size for s in sites},
        after={
            name: {
                s.name: len(plan.sites[s.name].kept) if s.name in plan.sites else s.size
                for s in sites
            }
            for name, plan in plans.items()
        },
    )


def steps(plan: Plan, evaluated: Mapping[int, Evaluation] | None = None) -> list[Step]:
    """The cost after each step of a plan, and what was evaluated, by step, 0 = before."""
    if plan.before is None:
        return []
    costs = [plan.before, *(step.after for step in plan.history)]
    known = evaluated or {}
    return [
        Step(
            step=number,
            macs=cost.macs,
            params=cost.params,
            channels=cost.channels,
            quality=finite(known[number].value) if number in known else None,
            loss=finite(known[number].named().get("loss")) if number in known else None,
        )
        for number, cost in enumerate(costs)
    ]


def frontier(plan: Plan) -> list[Judged]:
    """The places of a run that were evaluated, in the metric that counted for them."""
    if plan.before is None or not plan.places:
        return []
    curve, whole = plan.frontier(), plan.before.macs
    return [
        Judged(
            split=place.split,
            metric=place.metric,
            macs=whole / max(1, curve.cost(place).macs),
            quality=place.value,
            loss=place.loss,
            bound=place.bound,
        )
        for place in curve
    ]


def scores(criterion: str, scores_of: Mapping[str, Tensor], share: float | None = None) -> Scores:
    """The spread of all sites' scores; the cut has this share of the channels below it.

    >>> spread = scores("l1", {"0": torch.arange(1.0, 101.0)}, share=0.25)
    >>> sum(spread.counts), round(spread.cut)
    (100, 26)
    """
    values = torch.cat([v.detach().reshape(-1).double().cpu() for v in scores_of.values()])
    if not values.numel() or not bool(values.isfinite().all()):
        raise ObcError(f"the scores of '{criterion}' are none, or not all finite")
    values = values.sort().values
    cut = None if share is None else float(values[min(int(share * len(values)), len(values) - 1)])
    above = values[values > 0]
    log = bool(values[0] >= 0) and above.numel() > 1 and _wide(above)
    drawn = above.log10() if log else values
    low, high = float(drawn[0]), float(drawn[-1])
    if high <= low:
        low, high = low - 0.5, high + 0.5
    edges = torch.linspace(low, high, _BARS + 1, dtype=torch.float64)
    places = ((drawn - low) / (high - low) * _BARS).long().clamp(0, _BARS - 1)
    return Scores(
        criterion=criterion,
        edges=(10**edges if log else edges).tolist(),
        counts=torch.bincount(places, minlength=_BARS).tolist(),
        log=log,
        zeros=len(values) - len(drawn),
        cut=cut,
    )


def _wide(values: Tensor) -> bool:
    """Whether most of these sorted values span so much that a linear axis would show one bar."""
    low, high = values[len(values) // 20], values[-1 - len(values) // 20]
    return bool(high > 30 * low)


def heat(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Callable[[Any, Any], Tensor],
    layer: str,
    filters: int = 8,
) -> Heat:
    """abs(JᵀJ) of a layer's first filters, a row of J for each batch, as in the paper's figure.

    Neighbouring weights are averaged so that a filter takes twelve rows and columns at most.
    """
    modules = dict(model.named_modules())
    if layer not in modules or not isinstance(getattr(modules[layer], "weight", None), Tensor):
        raise ObcError(
            f"no layer with weights is named '{layer}'{closest(layer, modules)}", section="names"
        )
    weight = modules[layer].weight
    assert isinstance(weight, Tensor)
    rows = []
    with evaluating(model), torch.enable_grad(), _learning(weight):
        for batch in batches:
            (grad,) = torch.autograd.grad(loss(model, batch), weight)
            rows.append(grad[:filters].flatten(1).double().cpu())
    if not rows:
        raise ObcError("there are no batches to draw a heat map from")
    count, size = rows[0].shape
    jacobian = torch.stack(rows)  # [batches, filters, weights of a filter]
    side = min(size, _SIDE)
    group = torch.arange(size) * side // size  # which row of the map each weight falls in
    total = torch.zeros(count * side, count * side, dtype=torch.float64)
    share = torch.bincount(group, minlength=side).double().repeat(count)
    place = (torch.arange(count)[:, None] * side + group).reshape(-1)
    flat = jacobian.flatten(1)
    for part in torch.arange(flat.shape[1]).split(1024):  # never all of JᵀJ at once
        product = (flat[:, part].T @ flat).abs()
        columns = torch.zeros(len(part), count * side, dtype=torch.float64)
        columns.index_add_(1, place, product)
        total.index_add_(0, place[part], columns)
    values = total / share[:, None] / share
    return Heat(
        layer=layer,
        values=[[float(f"{v:.4g}") for v in row] for row in values.tolist()],
        block=side,
        note=f"first {count} filters, {len(rows)} batches",
    )


@contextmanager
def _learning(weight: Tensor) -> Iterator[None]:
    """A frozen weight has a gradient too, while it is asked for."""
    was = weight.requires_grad
    if weight.is_leaf:
        weight.requires_grad_(True)
    try:
        yield
    finally:
        if weight.is_leaf:
            weight.requires_grad_(was)


def recalibration(account: Recalibration, plan: str = "") -> Recalibrated:
    """The errors by layer from what `obc.recalibrate` returned."""
    return Recalibrated(
        plan=plan,
        samples=account.samples,
        kept=account.kept,
        before=_error(account.before),
        after=_error(account.after),
        fits=[
            Fit(
                name=fit.name,
                before=_error(fit.before),
                after=_error(fit.after),
                kept=fit.kept,
                note=fit.note,
            )
            for fit in account.fits
        ],
    )


def _error(value: float | None) -> float | None:
    """A share of a variance; taken from sums of products, one of nothing may be just below 0."""
    known = finite(value)
    return None if known is None else max(known, 0.0)


def tuning(name: str, tuned: Tuned, plan: str = "") -> Tuning:
    """A curve from what `obc.finetune` returned."""
    key = history_key(tuned.last.metric.name) if tuned.last is not None else ""
    return Tuning(
        name=name,
        plan=plan,
        epochs=[
            Epoch(epoch=int(h["epoch"]), loss=h["loss"], quality=finite(h.get(key)), lr=h.get("lr"))
            for h in tuned.history
        ],
    )
