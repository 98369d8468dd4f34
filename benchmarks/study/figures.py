"""The pictures of the page, drawn from committed numbers, with a standard deviation as bar."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.study.blocks import BLOCK_RANK, RECALIBRATED, SETTINGS, TITLES
from benchmarks.study.sources import ahead_of_naive, benchmark, by_variant, values
from benchmarks.study.studies import STUDIES
from benchmarks.study.tuned import tunings
from benchmarks.study.tuning import ARMS

REMOVED = {"channels": "channels", "params": "parameters", "macs": "MACs"}
NOT_TUNED = "top-1, %, not tuned"


def draw(folder: Path) -> None:
    """All pictures for which there are numbers, into a folder."""
    figures = {
        "criteria": criteria,
        "recalibrated": recalibrated,
        "equivalent": equivalent,
        "resnet20": partial(removed, "resnet20"),
        "resnet56": partial(removed, "resnet56"),
        "vgg16": partial(removed, "vgg16"),
        "vit": partial(removed, "vit"),
        "tuning": tuning,
    }
    with rc_context({"svg.hashsalt": "obc", "svg.fonttype": "none", "font.size": 8}):
        for name, make in figures.items():
            figure = make()
            if figure is not None:
                figure.savefig(folder / f"study_{name}.svg", metadata={"Date": None})


def _bars(axes: Any, x: Sequence[float], runs: Sequence[Sequence[float]], **style: Any) -> None:
    """A line through means, with the standard deviation over seeds."""
    means = [statistics.mean(numbers) for numbers in runs]
    deviations = [statistics.stdev(n) if len(n) > 1 else 0.0 for n in runs]
    axes.errorbar(x, means, deviations, capsize=2, elinewidth=0.8, markersize=3, **style)
    axes.grid(alpha=0.3, lw=0.5)
    axes.spines[["top", "right"]].set_visible(False)


def _panels(count: int, width: float = 10.0, height: float = 3.4) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, count, squeeze=False)[0]


def _legend(figure: Figure, axes: Any, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def criteria() -> Figure:
    """Accuracy over MACs of the criteria of `benchmarks.block_rank`, on three data sets."""
    figure, panels = _panels(len(BLOCK_RANK))
    for axes, (name, title) in zip(panels, BLOCK_RANK.items(), strict=True):
        results = benchmark(name)
        for number, (setting, words) in enumerate(SETTINGS.items()):
            if runs := results["results"].get(setting):
                points = list(zip(*(run["accuracy"] for run in runs), strict=True))
                style = {"color": f"C{number}", "linestyle": "--" if number > 3 else "-"}
                _bars(axes, results["speedups"], points, label=words, marker="o", **style)
        axes.set(title=title, xlabel="MACs ÷", ylabel=NOT_TUNED)
    _legend(figure, panels[0], 4)
    return figure


def recalibrated() -> Figure:
    """Accuracy over MACs of each recalibrated network, as cut and after recalibration."""
    cells = benchmark("recalibrate")["cells"]
    names = dict.fromkeys(key.split("|")[0] for key in cells)
    chosen = [n for n in RECALIBRATED if n in names and f"{n}|group JC ÷ cost|0" in cells][:4]
    figure, panels = _panels(len(chosen), height=3.0)
    for axes, name in zip(panels, chosen, strict=True):
        start = f"{name}|group JC ÷ cost|"
        runs = [cell for key, cell in cells.items() if key.startswith(start)]
        speedups = [point["speedup"] for point in runs[0]["points"]]
        for which, colour in (("recalibrated", "C0"), ("cut", "C1")):
            points = [values(runs, s, which) for s in speedups]
            _bars(axes, speedups, points, label=which, color=colour, marker="o")
        axes.axhline(statistics.mean(r["whole"] for r in runs), color="0.6", lw=0.8, ls=":")
        axes.set(title=RECALIBRATED[name], xlabel="MACs ÷", ylabel=NOT_TUNED, ylim=(0, 100))
    _legend(figure, panels[0], 2)
    return figure


def equivalent() -> Figure:
    """EP less naive after the same tuning, at the same and at three times naive's rate."""
    figure, panels = _panels(2, width=8.0, height=2.8)
    names = {"equivalent_accuracy": "ResNet-20, digits", "equivalent_accuracy_cifar": "CIFAR-10"}
    for axes, (name, title) in zip(panels, names.items(), strict=True):
        for number, (base, words) in enumerate(
            (("naive", "naive"), ("naive, lr x 3", "naive at three times the rate"))
        ):
            gains = [ahead_of_naive(name, s, base) for s in (2, 4, 8)]
            x = [place + 0.1 * (number - 0.5) for place in range(3)]
            _bars(axes, x, gains, label=f"EP − {words}", marker="o", linestyle="none")
        axes.axhline(0, color="0.6", lw=0.8)
        axes.set_xticks(range(3), ["2×", "4×", "8×"])
        axes.set(title=title, xlabel="MACs ÷", ylabel="points of top-1")
    _legend(figure, panels[0], 2)
    return figure


def removed(name: str) -> Figure | None:
    """Accuracy of each criterion over channels, parameters and MACs removed, as cut."""
    runs, speedups = by_variant(name), STUDIES[name].speedups
    if not runs:
        return None
    figure, panels = _panels(3)
    for axes, (cost, words) in zip(panels, REMOVED.items(), strict=True):
        for number, (variant, cells) in enumerate(runs.items()):
            x = [0.0] + [100 * statistics.mean(values(cells, s, cost)) for s in speedups]
            y = [[c["whole"] for c in cells]] + [values(cells, s, "cut") for s in speedups]
            style = {"color": f"C{number}", "linestyle": "--" if number > 4 else "-"}
            _bars(axes, x, y, label=variant, marker="o", **style)
        axes.set(xlabel=f"{words} removed, %", ylabel=NOT_TUNED)
    panels[1].set_title(TITLES[name])
    _legend(figure, panels[0], 5)
    return figure


def tuning() -> Figure | None:
    """Validation accuracy over epochs of tuning with C and D and without, each way at its rate."""
    shown = [at for at in tunings() if "EP" in at.ways]
    if not shown:
        return None
    columns = min(3, len(shown))  # a page is no wider
    lines = -(-len(shown) // columns)
    figure = Figure(figsize=(4.0 * columns, 3.4 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    for axes, at in zip(panels, shown, strict=False):
        for arm, (rate, runs) in at.ways.items():
            number = ARMS.index(arm)  # a way has one colour in all panels
            epochs = list(zip(*(run["validation"] for run in runs.values()), strict=True))
            x = [epoch + 0.04 * (number - 1.5) for epoch in range(len(epochs))]
            _bars(axes, x, epochs, label=f"{arm}, rate {rate:g}", color=f"C{number}", marker="o")
        title = f"{at.network}, MACs ÷ {at.speedup:g}\nC and D at {at.tuning.ep_rate:g} × the rate"
        axes.set(title=title, xlabel=f"epochs of {at.tuning.images:,} images")
        axes.set_ylabel("top-1 on validation images, %")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(fontsize=7)
    return figure
