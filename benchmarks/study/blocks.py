"""The tables of `docs/results.md`, each made from the committed cells."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks._harness import spread
from benchmarks.study.studies import GROUP, JC, STUDIES
from benchmarks.study.summary import Runs, by_variant, results, table, values
from benchmarks.study.tuning import arms, speedups_of

# The paper's table 5: seconds of one evaluation of ResNet-56 on a TITAN Xp.
PAPER_SECONDS = {
    **{"random": 0.07, "bn_scale": 0.10, "l1": 0.10, "fpgm": 0.15, "whc": 0.15},
    **{"taylor": 2.66, "jacobian": 2.73, "hessian": 242.80},
}
TITLES = {
    "resnet20": "ResNet-20 of 91.7%",
    "resnet56": "ResNet-56 of 93.4%",
    "vgg16": "VGG16 of quarter width",
    "fashion": "ResNet-20 of width 8, Fashion-MNIST at 14 × 14",
}


def protocol(name: str) -> str:
    """One line on how a study was run."""
    about, runs = results(name), by_variant(name)
    seeds = max(map(len, runs.values()))
    whole = [cell["whole"] for cells in runs.values() for cell in cells]
    return (
        f"**{TITLES[name]}**: {statistics.mean(whole):.1f}% whole on {about['test']:,} test images; "
        f"N = {about['rows']} rows of {about['batch']} images, p = {100 * about['step']:g}%, "
        f"{about['samples']} images to recalibrate with; "
        f"{'one seed' if seeds == 1 else f'up to {seeds} seeds, mean ± standard deviation'} "
        f"(`python -m benchmarks.study {name}`)."
    )


def _bold(rows: Sequence[tuple[str, list[list[float]]]]) -> list[list[str]]:
    """Rows of numbers over seeds, the best mean of each column in bold."""
    columns = list(zip(*(cells for _, cells in rows), strict=True))
    best = [max((statistics.mean(c) for c in column if c), default=0.0) for column in columns]
    return [
        [name]
        + [
            f"**{spread(c)}**" if c and statistics.mean(c) == b else spread(c)
            for c, b in zip(cells, best, strict=True)
        ]
        for name, cells in rows
    ]


def criteria(name: str) -> str:
    """Each variant as cut at all speed-ups, and recalibrated."""
    study, runs = STUDIES[name], by_variant(name)
    if not runs:
        return ""
    rows = []
    for variant in (v for v in study.variants if v in runs):
        cut = [values(runs[variant], s, "cut") for s in study.speedups]
        fitted = [values(runs[variant], s, "recalibrated") for s in study.refit]
        rows.append((variant, cut + fitted))
    columns = [f"{s:g}×" for s in study.speedups] + [f"{s:g}×, recalibrated" for s in study.refit]
    return f"{protocol(name)}\n\n{table(['', *columns], _bold(rows))}"


def ablations() -> str:
    """Each ablation beside JC as printed with the same seed."""
    runs, base = by_variant("ablations"), by_variant("resnet20").get(JC)
    if not runs or not base:
        return ""
    shown: Runs = {"as printed": base[:1], **{v: r[:1] for v, r in runs.items()}}
    if GROUP in by_variant("resnet20"):
        shown["group JC ÷ cost"] = by_variant("resnet20")[GROUP][:1]
    rows = []
    for variant, cells in shown.items():
        numbers = [values(cells, s, "cut") for s in (2.0, 4.0)]
        rows.append((variant, [*numbers, values(cells, 4.0, "recalibrated")]))
    seconds = [f"{cells[0]['planning seconds']:.0f}" for cells in shown.values()]
    lines = [[*row, s] for row, s in zip(_bold(rows), seconds, strict=True)]
    return table(["", "2×", "4×", "4×, recalibrated", "planning, CPU s"], lines)


def tuning() -> str:
    """Each way at its best rate, before and after tuning."""
    about = results("tuning")
    cells = about.get("cells", {})
    parts = []
    for speedup in speedups_of(cells):
        ways = arms(cells, speedup)
        rows = []
        for arm, (rate, runs) in ways.items():
            before, after = zip(*(run["test"] for run in runs), strict=True)
            cost = spread([run["CPU seconds"] for run in runs], 0)
            rows.append([arm, f"{rate:g}", spread(before), spread(after), cost])
        seeds = len(ways["naive"][1])
        words = f"MACs ÷ {speedup:g}, {seeds} seed{'s' if seeds > 1 else ''}:"
        heads = ["best rate", "before", f"after {about['epochs']} epochs", "CPU s"]
        parts += [words, table(["", *heads], rows)]
    return "\n\n".join(parts)


def rates() -> str:
    """Validation accuracy of seed 0 by rate, from which rates were chosen."""
    about = results("tuning")
    cells: dict[str, Any] = about.get("cells", {})
    rows = [
        [f"{speedup:g}×", arm]
        + [f"{cells[f'{speedup:g}x|{arm}|{r:g}|0']['validation'][-1]:.1f}" for r in about["rates"]]
        for speedup in speedups_of(cells)
        for arm in arms(cells, speedup)
    ]
    return table(["MACs ÷", "", *(f"{r:g}" for r in about["rates"])], rows) if rows else ""


def seconds() -> str:
    """CPU seconds of one scoring: the paper's, obc's and torch-pruning's, each over Taylor's."""
    measured = results("time").get("CPU seconds", {})
    if not measured:
        return ""
    rows = []
    for criterion, times in measured.items():
        paper = PAPER_SECONDS.get(criterion)
        row = [criterion, "" if paper is None else f"{paper:g}"]
        row.append("" if paper is None else f"{paper / PAPER_SECONDS['taylor']:.2g}")
        for library in ("obc", "torch-pruning"):
            own, taylor = times.get(library), measured["taylor"][library]
            row += ["", ""] if own is None else [f"{own:.2g}", f"{own / taylor:.2g}"]
        rows.append(row)
    heads = ["the paper, GPU s", "÷ Taylor", "obc, CPU s", "÷ Taylor", "torch-pruning, CPU s"]
    return table(["", *heads, "÷ Taylor"], rows)


def frontier() -> str:
    """Points lost by the recommended ranking, with and without recalibration."""
    rows = []
    for name in ("resnet20", "resnet56", "vgg16", "fashion"):
        cells = by_variant(name).get(GROUP)
        if not cells:
            continue
        whole = statistics.mean(cell["whole"] for cell in cells)
        for speedup in STUDIES[name].speedups:
            cut, fitted = (values(cells, speedup, k) for k in ("cut", "recalibrated"))
            row = [TITLES[name], f"{speedup:g}×", f"{whole:.1f}"]
            rows.append([*row, spread(cut), spread(fitted), _lost(whole, fitted)])
    columns = ["network", "MACs ÷", "whole", "cut", "recalibrated", "points lost"]
    return table(columns, rows) if rows else ""


def _lost(whole: float, numbers: Sequence[float]) -> str:
    return f"{whole - statistics.mean(numbers):.1f}" if numbers else ""
