"""How long a run will take: steps, rows and seconds, before it begins and while it goes on."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from obc.criteria.score import Loss
from obc.search.algorithm import Run
from obc.search.planner import prepare
from obc.search.way import clock, way_to

_ROWS = 50  # N, if the settings do not say


@dataclass(frozen=True)
class Estimate:
    """What a run is expected to take; `row` and `step` are the seconds measured for one of each.

    A step's own seconds are those beside its rows: ranking, cutting, tracing.
    """

    steps: int
    rows: int
    seconds: float
    row: float
    step: float

    def __str__(self) -> str:
        return (
            f"about {self.steps} steps, {self.rows} rows and {clock(self.seconds)}; "
            f"one row takes {self.row:.2g} s, what else a step does {self.step:.2g} s"
        )


def estimate(
    model: nn.Module,
    example: Any = None,
    batches: Iterable[Any] = (),
    loss: Loss | None = None,
    **settings: Any,
) -> Estimate:
    """Try one step with one row, and count the steps to the strictest target.

    Steps are counted as if all sites lost the same share of their channels, and rows are expected
    to become cheaper as MACs do. Arguments are those of `obc.plan` with a cost target.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
    >>> batches = [torch.randn(16, 8) for _ in range(4)]
    >>> run = estimate(
    ...     net,
    ...     torch.zeros(1, 8),
    ...     batches,
    ...     lambda m, x: m(x).square().mean(),
    ...     target="macs=2x",
    ...     step=0.125,
    ...     rows=3,
    ... )
    >>> run.steps, run.rows
    (4, 12)
    """
    rows, carry = int(settings.get("rows", _ROWS)), float(settings.get("carry", 0.0))
    settings = {**settings, "rows": 1, "carry": 0.0, "resume": None}
    run = prepare(model, example, batches, loss, **settings)
    limit = min(run.reach.limit(target) for target in run.targets)
    way = way_to(run.reach, [site.size for site in run.sites], limit, run.pace)
    row, step = _measured(run)
    if not row:
        rows = 0
    later = max(1, round(rows * (1 - carry))) if rows else 0
    count = rows + (way.steps - 1) * later if way.steps else 0
    seconds = way.steps * step + count * row * way.share
    return Estimate(way.steps, count, seconds, row, step)


def _measured(run: Run) -> tuple[float, float]:
    """Seconds of one row, and of one step beside it; the first of each only warms up."""
    times = []
    for _ in range(2):
        start = time.perf_counter()
        if run.criterion.evidence != "none":
            run.scorer.totals(run.stream.take(1))
        times.append(time.perf_counter() - start)
    row = times[-1] if run.criterion.evidence != "none" else 0.0
    start = time.perf_counter()
    run.advance()
    return row, max(0.0, time.perf_counter() - start - row)
