"""What the paper claims, and what the cells of the study say about it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks._harness import spread
from benchmarks.study.studies import GROUP, JC
from benchmarks.study.summary import by_variant, results, table, values
from benchmarks.study.tuning import arms, speedups_of

REACH = "out of reach here"
AGGREGATES = ("mean", "max", "sum, normalised", "mean, normalised", "max, normalised")
NOT_RUN = (
    "**What was not repeated**: a hundred epochs of tuning, CIFAR-100, ImageNet; the table of "
    "claims says which statements of the paper that leaves open."
)


def summary() -> str:
    """The study in five lines."""
    lines = (_criterion(), _recalibration(), _tuned(), _cost(), NOT_RUN)
    return "\n".join(f"- {line}" for line in lines)


def _best(which: str, speedup: float, count: int) -> str:
    """The best variants on ResNet-20."""
    means = _means("resnet20", which, speedup)
    best = sorted(means, key=lambda v: -means[v])[:count]
    return ", ".join(f"{v} {means[v]:.1f}" for v in best)


def _criterion() -> str:
    return (
        f"**Which criterion?** ResNet-20 on CIFAR-10 at half the MACs, not tuned: "
        f"{_best('cut', 2.0, 3)}; recalibrated: {_best('recalibrated', 2.0, 3)}; recalibrated at a "
        f"quarter: {_best('recalibrated', 4.0, 3)}."
    )


def _recalibration() -> str:
    runs = by_variant("resnet20")[GROUP]
    pairs = [
        f"{spread(values(runs, s, 'cut'))} → {spread(values(runs, s, 'recalibrated'))} at {s:g}×"
        for s in (2.0, 4.0)
    ]
    whole = statistics.mean(run["whole"] for run in runs)
    return (
        f"**What does recalibration give?** {', '.join(pairs)} (whole {whole:.1f}), with 512 "
        "images and no labels."
    )


def _tuned() -> str:
    return f"**Does EP help?** After four short epochs, each way at its best rate: {_equivalent()}."


def _cost() -> str:
    return f"**What does a scoring cost?** {_time()}."


def claims() -> str:
    """Claim by claim: what the paper says, what was measured here, the verdict."""
    ablation = {**by_variant("ablations"), "as printed": by_variant("resnet20")[JC][:1]}

    def compared(variants: Sequence[str]) -> str:
        """Variants as cut at twice and at a quarter of the MACs, seed 0."""
        at = [
            f"{v} {' / '.join(spread(values(ablation[v], s, 'cut')) for s in (2.0, 4.0))}"
            for v in variants
            if v in ablation
        ]
        return f"ResNet-20 at 2× / 4×, not tuned: {'; '.join(at)}"

    rows = [
        (
            "Without tuning, JC is ahead of all other criteria on every network (figures 5–7)",
            "curves only",
            "; ".join(_rank(name) for name in ("resnet20", "resnet56", "vgg16")),
            VERDICTS["criteria"],
        ),
        (
            "Interactions within a filter matter: JC is ahead of Taylor, its diagonal",
            "curves only",
            _against("resnet20", JC, "taylor"),
            VERDICTS["taylor"],
        ),
        (
            "Setting the γβ cross term of BN to zero is worse (figure 8)",
            "curve only",
            compared(["as printed", "γβ diagonal"]),
            VERDICTS["norm"],
        ),
        (
            "Sum without normalisation is best; mean or normalised is worse (figure 9, table 8)",
            "mean + mean collapses: 35.9% at 6× after tuning, against 71.7%",
            compared(["as printed", *AGGREGATES]),
            VERDICTS["aggregate"],
        ),
        (
            "Smaller steps p are better, and p matters more than N",
            "curve only",
            compared(["p = 10%", "as printed", "p = 2.5%", "N = 5", "N = 20", "N = 50"]),
            VERDICTS["step"],
        ),
        (
            "Global pruning is far ahead of local (figure 7, ViT)",
            "curves only",
            compared(["as printed", "local", "isomorphic"]),
            VERDICTS["scope"],
        ),
        (
            "A JC evaluation costs as much as Taylor's; Hessian's 91 times as much (table 5)",
            "2.73 s, 2.66 s, 242.8 s",
            _time(),
            VERDICTS["time"],
        ),
        (
            "EP is better after tuning (tables 3, 4, 8)",
            "ResNet-56 +0.09 at 2.1×, −0.02 at 2.5×; VGG19 +0.4 to +0.6",
            _equivalent(),
            VERDICTS["equivalent"],
        ),
        (
            "ResNet-56 at 2.1× is better than before after 100 epochs (93.53 → 93.83, EP 93.92)",
            "sparse learning, then 100 epochs",
            "neither was run: about 20 hours of one core",
            REACH,
        ),
        (
            "VGG19 on CIFAR-100 at 9×: 70.41, EP 70.94",
            "100 epochs",
            "CIFAR-100 could not be had",
            REACH,
        ),
        (
            "ResNet-50, MobileNetV2 and ViT-B/16 on ImageNet after tuning (table 3)",
            "76.57, 68.12, 80.85",
            "500 images are at hand; the recipes pass their dry run (`obc run NAME --dry-run`)",
            REACH,
        ),
        (
            "Gradients of trained networks do not vanish; JᵀJ is block-diagonal (figures 1, 2, 4)",
            "figures",
            "drawn by `examples/plot_03_blocks_of_jtj.py` and "
            "`examples/plot_04_gradients_do_not_vanish.py`, on the digits",
            "reproduced, smaller",
        ),
    ]
    return table(["the paper's claim", "the paper's number", "measured here", "verdict"], rows)


# Said by hand, from the numbers beside them.
VERDICTS = {
    "criteria": "",
    "taylor": "",
    "norm": "",
    "aggregate": "",
    "step": "",
    "scope": "",
    "time": "",
    "equivalent": "",
}


def _means(name: str, which: str, speedup: float) -> dict[str, float]:
    runs = by_variant(name)
    return {v: statistics.mean(n) for v, c in runs.items() if (n := values(c, speedup, which))}


def _rank(name: str) -> str:
    """The best three as cut, halfway and at the end."""
    speedups = [1.5, 2.0] if name.startswith("resnet") else [2.0, 3.0]
    parts = []
    for speedup in speedups if by_variant(name) else ():
        means = _means(name, "cut", speedup)
        best = sorted(means, key=lambda v: -means[v])[:3]
        parts.append(f"{speedup:g}×: " + ", ".join(f"{v} {means[v]:.1f}" for v in best))
    return f"{name}, {'; '.join(parts)}" if parts else ""


def _against(name: str, first: str, second: str) -> str:
    """Two variants as cut, at each speed-up."""
    runs, speedups = by_variant(name), (1.5, 2.0, 3.0, 4.0)
    return "; ".join(
        f"{s:g}×: {' against '.join(spread(values(runs[v], s, 'cut')) for v in (first, second))}"
        for s in speedups
    )


def _time() -> str:
    seconds = results("time")["CPU seconds"]
    taylor = seconds["taylor"]["obc"]
    ratios = {v: seconds[v]["obc"] / taylor for v in ("jacobian", "hessian")}
    peer = seconds["hessian"]["torch-pruning"] / seconds["taylor"]["torch-pruning"]
    return (
        f"over Taylor: JC {ratios['jacobian']:.2f}, Hessian {ratios['hessian']:.1f}, "
        f"torch-pruning's Hessian {peer:.0f} over its Taylor"
    )


def _equivalent() -> str:
    """EP less naive after tuning, each at its best rate, seed by seed."""
    cells = results("tuning")["cells"]
    parts = []
    for speedup in speedups_of(cells):
        ways = {
            arm: [run["test"][-1] for run in runs]
            for arm, (_, runs) in arms(cells, speedup).items()
        }
        for base, other in (("naive", "EP"), ("recalibrated", "EP from recalibrated")):
            gains = [b - a for a, b in zip(ways[base], ways[other], strict=False)]
            parts.append(f"{speedup:g}×: {other} − {base} = {spread(gains)}")
    return "ResNet-20, " + "; ".join(parts)
