"""The committed numbers that the page is made from: cells of the study, and other benchmarks."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks._harness import RESULTS
from benchmarks.study.studies import ABLATIONS, JC

Runs = dict[str, list[dict[str, Any]]]
COMPARED = Path(__file__).parents[2] / "docs" / "compare"


def benchmark(name: str) -> dict[str, Any]:
    """The result file of a benchmark; nothing, if it was not run."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def by_variant(name: str) -> Runs:
    """The cells of a study by variant, in the order of their seeds."""
    runs: Runs = {}
    cells = benchmark(f"study_{name}").get("cells", {})
    for key in sorted(cells, key=lambda key: int(key.rsplit("|", 1)[1])):
        runs.setdefault(key.rsplit("|", 1)[0], []).append(cells[key])
    return runs


def ablated() -> Runs:
    """The ablations of the study, and first JC as printed with the same seeds."""
    runs, printed = by_variant("ablations"), by_variant("resnet20").get(JC, [])
    shared = printed[: max(map(len, runs.values()), default=0)]
    return {JC: shared, **{variant: runs[variant] for variant in ABLATIONS if variant in runs}}


def values(runs: Sequence[dict[str, Any]], speedup: float, which: str) -> list[float]:
    """Of each seed that has it, one number at a speed-up: "cut", "recalibrated", "channels", …"""
    points = [p for run in runs for p in run["points"] if p["speedup"] == speedup]
    return [p[which] for p in points if which in p]


def budget_means(cells: Sequence[dict[str, Any]], which: str) -> list[float]:
    """The mean over its budgets, of each seed that has it."""
    at = [[point[which] for point in cell["points"] if which in point] for cell in cells]
    return [statistics.mean(points) for points in at if points]


def study_means(name: str, which: str) -> dict[str, float]:
    """Of each variant of a study the mean over its budgets and seeds, best first."""
    means = {
        variant: statistics.mean(means)
        for variant, cells in by_variant(name).items()
        if (means := budget_means(cells, which))
    }
    return dict(sorted(means.items(), key=lambda pair: -pair[1]))


def curve_means(name: str, setting: str) -> list[float]:
    """Of each seed of `benchmarks.block_rank` or `carry`, the mean accuracy over its budgets."""
    runs = benchmark(name)["results"].get(setting, [])
    return [statistics.mean(run["accuracy"]) for run in runs]


def gains(name: str, setting: str, base: str) -> list[float]:
    """By how much a setting is ahead of another in the mean over the budgets, seed by seed."""
    pairs = zip(curve_means(name, setting), curve_means(name, base), strict=True)
    return [a - b for a, b in pairs]


def ahead_of_naive(name: str, speedup: int, naive: str = "naive") -> list[float]:
    """EP less naive after the same tuning by `benchmarks.equivalent_accuracy`, seed by seed."""
    runs = benchmark(name)["runs"]
    return [run[f"{speedup}x equivalent"] - run[f"{speedup}x {naive}"] for run in runs]


def compared(name: str) -> dict[str, tuple[float, float]]:
    """Of `obc compare` on the digits: each variant's mean over the budgets and at half the MACs."""
    means = {}
    for curve in json.loads((COMPARED / f"{name}.json").read_text())["curves"]:
        points = curve["points"][1:]  # the first is the whole network
        half = min(points, key=lambda p: abs(p["macs"] - 0.5))
        means[curve["criterion"]] = (
            statistics.mean(p["accuracy"] for p in points),
            half["accuracy"],
        )
    return means


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
