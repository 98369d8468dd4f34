"""What one step takes, and what is ahead of a run: how many steps, and how much cheaper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from obc.search.feasibility import Reach
from obc.search.ranking import Chunk
from obc.search.settings import Settings

_POINTS = 33  # of the way, looked at


@dataclass(frozen=True)
class Pace:
    """What one step removes: so many channels, or so much of the cost."""

    amount: float
    of_cost: bool = False


def pace_of(settings: Settings, removable: int, reach: Reach) -> Pace:
    """The pace of a run with so many channels to remove in all, the paper's G."""
    if settings.pace == "cost":
        return Pace(settings.step * reach.value([own[0] for own in reach.levels]), of_cost=True)
    return Pace(max(1, round(settings.step * removable)))


def lowest(
    ranking: Sequence[Chunk], pace: Pace, reach: Reach, counts: Sequence[int]
) -> list[Chunk]:
    """What goes in one step: p G channels, or p of the cost, rounded up to whole chunks."""
    left, worth = pace.amount, [1.0 for _ in counts]
    if pace.of_cost:
        worth = reach.savings(counts, [1 for _ in counts]).tolist()
    going: list[Chunk] = []
    for chunk in ranking:
        going.append(chunk)
        left -= worth[chunk.site] * len(chunk.channels)
        if left <= 0:
            break
    return going


@dataclass(frozen=True)
class Way:
    """Steps to go, and their mean MACs as a share of those now."""

    steps: int
    share: float


def way_to(reach: Reach, counts: Sequence[int], limit: float, pace: Pace) -> Way:
    """The way from these counts to a limit, if all sites lose the same share of their channels."""
    now = torch.tensor(list(counts))
    floors = torch.tensor([own[-1] for own in reach.levels])
    shares = torch.linspace(0, 1, _POINTS, dtype=torch.float64)[:, None]
    rows = torch.maximum((now * (1 - shares)).round().long(), torch.minimum(now, floors))
    costs = reach.price(rows).double()
    reached = costs <= limit
    last = int(reached.int().argmax()) if bool(reached.any()) else _POINTS - 1
    if not last:
        return Way(0, 1.0)
    macs = [reach.cost(row).macs for row in rows[: last + 1].tolist()]
    # Between the last point above the limit and the first below it, in proportion.
    high, low = float(costs[last - 1]), float(costs[last])
    part = (high - max(limit, low)) / (high - low) if high > low else 1.0
    gone = [float((now - row).sum()) for row in rows[last - 1 : last + 1]]
    amount = gone[0] + part * (gone[1] - gone[0])
    if pace.of_cost:
        amount = float(costs[0]) - max(limit, low)
    steps = max(1, math.ceil(amount / pace.amount - 1e-9))
    return Way(steps, sum(macs) / len(macs) / max(1, macs[0]))


def clock(seconds: float) -> str:
    """
    >>> clock(75), clock(3700)
    ('1:15', '1:01:40')
    """
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours:
        return f"{hours}:{minutes:02}:{whole % 60:02}"
    return f"{minutes}:{whole % 60:02}"
