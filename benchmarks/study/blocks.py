"""The tables of `docs/results.md`, each made from committed numbers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks._harness import spread
from benchmarks.study.sources import (
    Runs,
    ablated,
    ahead_of_naive,
    benchmark,
    by_variant,
    compared,
    curve_means,
    gains,
    table,
    values,
)
from benchmarks.study.studies import GROUP, JC, STUDIES

# The paper's table 4: seconds of one evaluation of ResNet-56 on a TITAN Xp.
PAPER_SECONDS = {
    **{"random": 0.07, "l1": 0.10, "bn_scale": 0.10, "fpgm": 0.15, "whc": 0.15},
    **{"taylor": 2.66, "jacobian": 2.73, "hessian": 242.80},
}
TITLES = {
    "resnet20": "ResNet-20 of 91.7%, CIFAR-10",
    "resnet56": "ResNet-56 of 93.4%, CIFAR-10",
    "vgg16": "VGG16 of quarter width, CIFAR-10",
    "vit": "ViT of width 64 and four blocks, CIFAR-10",
    "mobilenet": "MobileNetV2, ImageNet",
    "mobilenet_last": "MobileNetV2, its last convolution kept as in the paper, ImageNet",
    "fashion": "ResNet-20 of width 8, Fashion-MNIST at 14 × 14",
}
RECALIBRATED = {
    "resnet56_padded": "ResNet-56 of 93.4%, CIFAR-10",
    "resnet56": "ResNet-56 of 88.6%, CIFAR-10",
    "digits": "ResNet-20, digits",
    "vit": "ViT, digits",
    "mixer": "MLP-Mixer, digits",
    "fashion": "ResNet-20, Fashion-MNIST",
    "mobilenet": "MobileNetV2, ImageNet",
}
REDUNDANCY = {
    "digits": "ResNet-20, digits",
    "resnet20_padded": "ResNet-20 of 91.7%, CIFAR-10",
    "resnet56_padded": "ResNet-56 of 93.4%, CIFAR-10",
}
SCALED = {
    "share": "OBS ÷ cost, shares of variance",
    "fisher": "OBS ÷ cost, squared gradients",
    "jacobian": "OBS ÷ cost, scaled by group JC",
}
# The names of `benchmarks.block_rank`, and what they are called on the page.
SETTINGS = {
    "jacobian (paper)": "JC, as printed",
    "jacobian, score/cost": "JC ÷ cost",
    "jacobian, group block": "group JC",
    "jacobian, group block, score/cost": "group JC ÷ cost",
    "taylor": "Taylor",
    "taylor, score/cost": "Taylor ÷ cost",
    "hessian": "Hessian",
    "hessian, score/cost": "Hessian ÷ cost",
}
BLOCK_RANK = {
    "block_rank_digits": "ResNet-20, digits",
    "block_rank_fashion": "ResNet-20, Fashion-MNIST",
    "block_rank_cifar": "ResNet-56 of 88.6%, CIFAR-10",
}


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


def digits() -> str:
    """All criteria of the paper on the digits."""
    rows = [(name, [[mean], [half]]) for name, (mean, half) in compared("criteria").items()]
    return table(["", "mean over 90% … 20% of the MACs", "at half the MACs"], _bold(rows))


def block_rank() -> str:
    """The gradient criteria on three data sets, in the mean over their budgets."""
    rows = [(words, [curve_means(f, s) for f in BLOCK_RANK]) for s, words in SETTINGS.items()]
    return table(["", *BLOCK_RANK.values()], _bold(rows))


def criteria(name: str) -> str:
    """A study: each variant as cut at all speed-ups, and recalibrated where it was."""
    study, runs = STUDIES[name], by_variant(name)
    if not runs:
        return ""
    about = benchmark(f"study_{name}")
    whole = statistics.mean(cell["whole"] for cells in runs.values() for cell in cells)
    protocol = (
        f"**{TITLES[name]}**, {whole:.1f}% whole on {about['test']:,} test images; N = "
        f"{about['rows']} rows of {about['batch']} images, p = {100 * about['step']:g}% "
        f"(`python -m benchmarks.study {name}`):"
    )
    pairs = [(s, "cut") for s in study.speedups] + [(s, "recalibrated") for s in study.refit]
    pairs = [pair for pair in pairs if any(values(cells, *pair) for cells in runs.values())]
    heads = [f"{s:g}×" if which == "cut" else f"{s:g}×, {which}" for s, which in pairs]
    known = [v for v in study.variants if v in runs]
    bold = _bold([(v, [values(runs[v], *pair) for pair in pairs]) for v in known])
    rows = [[variant, str(len(runs[variant])), *cells] for variant, *cells in bold]
    return f"{protocol}\n\n{table(['', 'seeds', *heads], rows)}"


def settings() -> str:
    """One setting of JC changed at a time, and what the planning took."""
    rows = [
        ["ResNet-20, digits, 70 to 50% of the MACs, 3 seeds", variant, f"{mean:.1f}", ""]
        for name in ("ablation-norm", "ablation-scope", "ablation-rows")
        for variant, (mean, _) in compared(name).items()
    ]
    networks = {
        "carry": "ResNet-20 of width 8, digits, 1.25× to 5×, 5 seeds",
        "carry_cifar": "ResNet-56 of 88.6%, CIFAR-10, 1.25× to 2.5×, 5 seeds",
    }
    carried = {
        "50 fresh rows (paper)": "N = 50, p = 1%",
        "12 fresh rows": "N = 12, p = 1%",
        "5 fresh rows": "N = 5, p = 1%",
        "50 fresh rows, steps 4 times as long": "N = 50, p = 4%",
    }
    for name, network in networks.items():
        results = benchmark(name)["results"]
        for setting, words in carried.items():
            if setting in results:
                cpu = statistics.mean(run["seconds"] for run in results[setting])
                rows.append([network, words, spread(curve_means(name, setting)), f"{cpu:.0f}"])
    return table(["", "JC with", "top-1, %, mean over the budgets", "planning, CPU s"], rows)


def ablations() -> str:
    """JC as printed and each ablation, and by how much that is ahead, seed by seed."""
    pairs = ((2.0, "cut"), (4.0, "cut"), (4.0, "recalibrated"))
    runs, rows = ablated(), []
    if len(runs) < 2:
        return ""
    bold = _bold([(v, [values(cells, *pair) for pair in pairs]) for v, cells in runs.items()])
    for (variant, *at), cells in zip(bold, runs.values(), strict=True):
        ahead = [
            [a - b for a, b in zip(values(cells, *pair), values(runs[JC], *pair), strict=False)]
            for pair in (pairs[0], pairs[2])
        ]
        rows.append([variant, *at, *(["", ""] if variant == JC else map(spread, ahead))])
    heads = ["2×", "4×", "4×, recalibrated", "2×: less JC", "4×, recalibrated: less JC"]
    return table([TITLES["resnet20"], *heads], rows)


def recalibrated() -> str:
    """Cut → recalibrated for each network and ranking of `benchmarks.recalibrate`."""
    cells = benchmark("recalibrate")["cells"]
    parts = [
        _of_network(name, {k: c for k, c in cells.items() if k.split("|")[0] == name})
        for name in RECALIBRATED
    ]
    points = [(c["whole"], p) for c in cells.values() for p in c["points"]]
    worse = [(w, p) for w, p in points if p["recalibrated"] < p["cut"]]
    words = (
        f"Of {len(points)} cuts, recalibration left {len(points) - len(worse)} as good or better"
    )
    if worse:
        whole, least = max(worse, key=lambda pair: pair[1]["cut"] - pair[1]["recalibrated"])
        words += (
            f"; the most it took away was {least['cut']:.1f} → {least['recalibrated']:.1f}, where "
            f"the whole network has {whole:.1f}"
        )
    return "\n\n".join([*filter(None, parts), f"{words}."])


def _of_network(name: str, cells: dict[str, Any]) -> str:
    """One network: a line for each ranking, the best after recalibration in bold."""
    if not cells:
        return ""
    first = next(iter(cells.values()))
    whole, used = statistics.mean(c["whole"] for c in cells.values()), first["settings"]
    heading = (
        f"**{RECALIBRATED[name]}**, {whole:.1f}% whole; N = {used['rows']} rows of "
        f"{used['batch']} images, p = {100 * used['step']:g}%:"
    )
    default = [cell for key, cell in cells.items() if key.split("|")[1] == GROUP]
    left = [f"{b:g}× {spread(_left(default, b), 2)}" for b in (2.0, 4.0) if _left(default, b)]
    words = f"Of what {GROUP} lost, recalibration leaves: {', '.join(left)}." if left else ""
    return "\n\n".join(filter(None, [_arrows(heading, cells), words]))


def _left(runs: Sequence[dict[str, Any]], speedup: float) -> list[float]:
    """The share of a cut's loss that is left after recalibration, seed by seed."""
    pairs = [(run["whole"], p) for run in runs for p in run["points"] if p["speedup"] == speedup]
    return [(whole - p["recalibrated"]) / (whole - p["cut"]) for whole, p in pairs]


def _arrows(heading: str, cells: dict[str, Any]) -> str:
    """Cut → recalibrated by the second part of a cell's key, and the number of seeds."""
    runs: Runs = {}
    for key, cell in cells.items():
        runs.setdefault(key.split("|")[1], []).append(cell)
    budgets = sorted({p["speedup"] for c in cells.values() for p in c["points"]})
    fitted = _bold([(r, [values(c, b, "recalibrated") for b in budgets]) for r, c in runs.items()])
    rows = []
    for (ranking, of_ranking), (_, *after) in zip(runs.items(), fitted, strict=True):
        cut = [spread(values(of_ranking, b, "cut")) for b in budgets]
        arrows = [f"{c} → {f}" if f else "" for c, f in zip(cut, after, strict=True)]
        rows.append([ranking, str(len(of_ranking)), *arrows])
    heads = ["", "seeds", *(f"{b:g}×" for b in budgets)]
    return f"{heading}\n\n{table(heads, rows)}"


def redundancy() -> str:
    """Structured OBS over a whole cut beside group JC ÷ cost, cut → recalibrated."""
    cells = benchmark("redundancy").get("cells", {})
    parts = []
    for network, title in REDUNDANCY.items():
        own = {
            f"{network}|{SCALED.get(way, way)}|{seed}": cell
            for (name, way, seed), cell in ((k.split("|"), c) for k, c in cells.items())
            if name == network
        }
        if own:
            whole = statistics.mean(cell["whole"] for cell in own.values())
            parts.append(_arrows(f"{title}, {whole:.1f}% whole:", own))
    return "\n\n".join(parts)


def equivalent() -> str:
    """Naive and Equivalent Pruning after the same tuning, at fixed rates."""
    rows = []
    for name, words in (
        ("equivalent_accuracy", "ResNet-20, digits, 5 epochs"),
        ("equivalent_accuracy_cifar", "ResNet-56 of 88.6%, CIFAR-10, 2 epochs of 4,096 images"),
    ):
        runs = benchmark(name)["runs"]
        for speedup in (2, 4, 8):
            columns = ("before tuning", "naive", "naive, lr x 3", "equivalent")
            numbers = [[run[f"{speedup}x {arm}"] for run in runs] for arm in columns]
            numbers.append(ahead_of_naive(name, speedup))
            rows.append([words, f"{speedup}×", *map(spread, numbers)])
    heads = ["before", "naive", "naive, 3 × the rate", "EP", "EP − naive"]
    return table(["", "MACs ÷", *heads], rows)


def passes() -> str:
    """What a scoring takes over a plain forward and backward pass, by `benchmarks.score`."""
    rows = [
        [row["figure"], f"{row['value']:.2f}"]
        for row in benchmark("score")["figures"]
        if "memory" not in row["figure"]
    ]
    return table(["CPU time of one scoring", ""], rows)


def seconds() -> str:
    """CPU seconds of one scoring: the paper's, obc's and torch-pruning's, each over Taylor's."""
    measured = benchmark("study_time").get("CPU seconds", {})
    rows = []
    for criterion, times in measured.items():
        paper = PAPER_SECONDS.get(criterion)
        row = [criterion, "" if paper is None else f"{paper:g}"]
        row.append("" if paper is None else f"{paper / PAPER_SECONDS['taylor']:.2g}")
        for library in ("obc", "torch-pruning"):
            taken, taylor = times.get(library), measured["taylor"][library]
            row += ["", ""] if taken is None else [f"{taken:.2g}", f"{taken / taylor:.2g}"]
        rows.append(row)
    heads = ["the paper, GPU s", "÷ Taylor", "obc, CPU s", "÷ Taylor", "torch-pruning, CPU s"]
    return table(["", *heads, "÷ Taylor"], rows) if rows else ""


def ahead(setting: str, base: str) -> str:
    """By how much a setting is ahead on the three data sets of `benchmarks.block_rank`."""
    titles = {name: words.removeprefix("ResNet-20, ") for name, words in BLOCK_RANK.items()}
    return ", ".join(
        f"{title.removesuffix(', CIFAR-10')} {spread(gains(name, setting, base))}"
        for name, title in titles.items()
    )
