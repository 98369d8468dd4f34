"""What went in which step of a run, and what there is to say about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from obc.plans.plan import PlanCost, PlanStep
from obc.search.ranking import Chunk
from obc.tracing.sites import Sites

_FELL = 0.05  # MACs that fall by this share should show in the time


def by_site(chunks: Iterable[Chunk], sites: Sites) -> dict[str, list[tuple[int, float]]]:
    """Channels with their scores, by site, in the order in which they go."""
    pairs: dict[str, list[tuple[int, float]]] = {}
    for chunk in chunks:
        of_site = pairs.setdefault(sites[chunk.site].name, [])
        of_site += zip(chunk.channels, chunk.scores, strict=True)
    return pairs


def channels_by_site(chunks: Iterable[Chunk], sites: Sites) -> dict[str, list[int]]:
    """The same without the scores."""
    return {
        name: [channel for channel, _ in pairs] for name, pairs in by_site(chunks, sites).items()
    }


def lowest_kept(
    last: Mapping[str, tuple[Tensor, Tensor]], kept: Mapping[str, Tensor], name: str
) -> float | None:
    """The lowest score that a channel which a site keeps had when it was last scored."""
    if name not in last:
        return None
    channels, scores = last[name]
    left = scores[torch.isin(channels, kept[name])]
    left = left[left.isfinite()]
    return float(left.min()) if len(left) else None


def notes(before: PlanCost, history: Sequence[PlanStep]) -> list[str]:
    """MACs and time side by side, and where the one falls without the other."""
    costs = [before, *(step.after for step in history)]
    after = costs[-1]
    if before.seconds is None or after.seconds is None:
        return []
    macs, time = before.macs / max(after.macs, 1), before.seconds / after.seconds
    lines = [f"{macs:.3g}x fewer MACs, {time:.3g}x less time on this machine"]
    best = before
    for number, now in enumerate(costs[1:], 1):
        assert now.seconds is not None and best.seconds is not None
        if now.seconds < best.seconds:
            best = now
        elif now.macs < best.macs * (1 - _FELL):
            lines.append(
                f"at step {number} MACs had fallen by {1 - now.macs / best.macs:.0%} "
                "without any gain in time"
            )
            best = now
    return lines
