"""What the paper claims, and what the cells of the study say about it."""

from __future__ import annotations

import statistics

from benchmarks.study.summary import Runs, by_variant, spread, values


def _at(runs: Runs, variant: str, speedup: float, which: str = "cut") -> str:
    return spread(values(runs.get(variant, []), speedup, which))


def _pairs(name: str, variants: list[str], speedups: list[float], which: str = "cut") -> str:
    """Variants side by side at some speed-ups."""
    runs = by_variant(name)
    parts = [
        f"{s:g}×: " + ", ".join(f"{v} {_at(runs, v, s, which)}" for v in variants if v in runs)
        for s in speedups
    ]
    return "; ".join(parts)


def _leaders(name: str, which: str, speedups: list[float]) -> str:
    """The three best variants at each speed-up."""
    runs = by_variant(name)
    parts = []
    for speedup in speedups:
        means = {v: statistics.mean(n) for v, c in runs.items() if (n := values(c, speedup, which))}
        best = sorted(means, key=lambda v: -means[v])[:3]
        parts.append(f"{speedup:g}×: " + ", ".join(f"{v} {means[v]:.1f}" for v in best))
    return "; ".join(parts)
