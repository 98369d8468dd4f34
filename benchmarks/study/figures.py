"""The pictures of the study, drawn from its committed cells, with a standard deviation as bar."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from benchmarks.study.studies import STUDIES
from benchmarks.study.summary import Runs, by_variant, results, values
from benchmarks.study.tuning import arms, speedups_of

REMOVED = {"channels": "channels", "params": "parameters", "macs": "MACs"}
NETWORKS = {
    "resnet20": "ResNet-20, CIFAR-10",
    "resnet56": "ResNet-56, CIFAR-10",
    "vgg16": "VGG16 of quarter width, CIFAR-10",
}


def draw(folder: Path) -> None:
    """All pictures, into a folder."""
    with rc_context({"svg.hashsalt": "obc", "svg.fonttype": "none", "font.size": 8}):
        figures = {"criteria": criteria(), "recalibrated": recalibrated(), "tuning": tuning()}
        for name, figure in figures.items():
            if figure is not None:
                figure.savefig(folder / f"study_{name}.svg", metadata={"Date": None})


def _bars(axes: Any, x: Sequence[float], runs: Sequence[Sequence[float]], **style: Any) -> None:
    means = [statistics.mean(numbers) for numbers in runs]
    deviations = [statistics.stdev(n) if len(n) > 1 else 0.0 for n in runs]
    axes.errorbar(x, means, deviations, capsize=2, elinewidth=0.8, markersize=3, **style)
    axes.grid(alpha=0.3, lw=0.5)
    axes.spines[["top", "right"]].set_visible(False)


def criteria() -> Figure | None:
    """Accuracy of each criterion over channels, parameters and MACs removed, as cut."""
    studied = {name: runs for name in NETWORKS if (runs := by_variant(name))}
    if not studied:
        return None
    figure = Figure(figsize=(10, 0.6 + 2.8 * len(studied)), layout="constrained")
    grid = figure.subplots(len(studied), 3, sharey=True, squeeze=False)
    for row, (name, runs) in zip(grid, studied.items(), strict=True):
        for axes, (cost, words) in zip(row, REMOVED.items(), strict=True):
            _curves(axes, runs, STUDIES[name].speedups, cost)
            axes.set_xlabel(f"{words} removed, %")
        row[0].set_ylabel(f"{NETWORKS[name]}\ntop-1, %, not tuned")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    return figure


def _curves(axes: Any, runs: Runs, speedups: Sequence[float], cost: str) -> None:
    for number, (variant, cells) in enumerate(runs.items()):
        whole = [cell["whole"] for cell in cells]
        x = [0.0] + [100 * statistics.mean(values(cells, s, cost)) for s in speedups]
        y = [whole] + [values(cells, s, "cut") for s in speedups]
        line = "-" if number < 5 else "--"
        _bars(axes, x, y, label=variant, color=f"C{number}", marker="o", linestyle=line)


def recalibrated() -> Figure | None:
    """Each criterion at each budget, from the accuracy as cut to that after recalibration."""
    studied = {name: runs for name in NETWORKS if (runs := by_variant(name))}
    pairs = [(name, s) for name in studied for s in STUDIES[name].refit]
    if not pairs:
        return None
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    places = figure.subplots(1, len(pairs), squeeze=False)[0]
    for axes, (name, speedup) in zip(places, pairs, strict=True):
        _dumbbells(axes, studied[name], speedup)
        axes.set_title(f"{NETWORKS[name].split(',')[0]}, MACs ÷ {speedup:g}")
        axes.set_xlabel("top-1, %, not tuned")
    return figure


def _dumbbells(axes: Any, runs: Mapping[str, Any], speedup: float) -> None:
    known = {v: c for v, c in runs.items() if values(c, speedup, "recalibrated")}
    for height, cells in enumerate(reversed(known.values())):
        before, after = (values(cells, speedup, k) for k in ("cut", "recalibrated"))
        ends = [statistics.mean(before), statistics.mean(after)]
        axes.plot(ends, [height] * 2, color="0.7", lw=1, zorder=1)
        for numbers, colour in ((before, "C1"), (after, "C0")):
            off = statistics.stdev(numbers) if len(numbers) > 1 else 0.0
            axes.errorbar(
                statistics.mean(numbers), height, xerr=off, fmt="o", ms=4, capsize=2, color=colour
            )
    axes.set_yticks(range(len(known)), list(reversed(known)))
    axes.set_xlim(0, 100)
    axes.grid(alpha=0.3, lw=0.5)
    axes.spines[["top", "right"]].set_visible(False)


def tuning() -> Figure | None:
    """Validation accuracy over epochs, each way at the rate that was best there."""
    cells = results("tuning").get("cells", {})
    speedups = speedups_of(cells)
    if not speedups:
        return None
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    places = figure.subplots(1, len(speedups), squeeze=False)[0]
    for axes, speedup in zip(places, speedups, strict=True):
        for number, (arm, (rate, runs)) in enumerate(arms(cells, speedup).items()):
            epochs = list(zip(*(run["validation"] for run in runs), strict=True))
            x = [epoch + 0.04 * (number - 1.5) for epoch in range(len(epochs))]
            _bars(axes, x, epochs, label=f"{arm}, rate {rate:g}", color=f"C{number}", marker="o")
        axes.set(
            xlabel="epochs",
            ylabel="top-1 on validation images, %",
            title=f"ResNet-20, MACs ÷ {speedup:g}",
        )
        axes.legend(fontsize=7)
    return figure
