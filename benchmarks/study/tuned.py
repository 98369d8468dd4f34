"""What came of the tunings: their tables, and one way beside another."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks._harness import spread
from benchmarks.study.sources import benchmark, table
from benchmarks.study.tuning import (
    TUNINGS,
    Tuning,
    arms,
    best_rate,
    chosen_at,
    sparse_recipe,
)

NETWORKS = {
    "resnet20_padded": "ResNet-20",
    "resnet56_padded": "ResNet-56",
    "vgg16_quarter": "VGG16 of quarter width",
}


class Tuned(NamedTuple):
    """One network at one speed-up: of each way of tuning its rate, and its runs by seed.

    `rates_of` says where the rates were chosen, if not on this network at this speed-up.
    """

    tuning: Tuning
    speedup: float
    rates_of: str
    ways: dict[str, tuple[float, dict[int, Any]]]

    @property
    def network(self) -> str:
        return NETWORKS[self.tuning.network]

    @property
    def epochs(self) -> str:
        """How long it was trained, in words."""
        first = f"{self.tuning.sparse} epochs of sparse learning and " if self.tuning.sparse else ""
        whole = f" of {self.tuning.images:,} images" if self.tuning.augmented else ""
        return f"{first}{self.tuning.epochs} epochs{' of tuning' if first else whole}"

    def after(self, arm: str) -> list[float]:
        """Accuracy on the test images after tuning, seed by seed."""
        return [run["test"][-1] for run in self.ways[arm][1].values()]

    def ahead(self, arm: str, base: str = "naive") -> list[float]:
        """By how much a way is ahead of another, seed by seed."""
        return [a - b for a, b in zip(self.after(arm), self.after(base), strict=True)]

    def whole(self) -> list[list[float]]:
        """Accuracy of the whole network as given, and after sparse learning, seed by seed."""
        runs = self.ways["naive"][1].values()
        return [list(numbers) for numbers in zip(*(run["whole"] for run in runs), strict=True)]


def shown(name: str) -> list[Tuned]:
    """A tuning at each speed-up at which the ways have a run in common, least speed-up first."""
    tuning = TUNINGS[name]
    cells, known = _cells(name), _cells(tuning.rates or name)
    source = TUNINGS[tuning.rates or name].network
    found = []
    for speedup in sorted(tuning.speedups):
        place = chosen_at(tuning, speedup, known)
        if place is None:
            continue
        ways = arms(cells, speedup, {arm: best_rate(known, place, arm) for arm in tuning.arms})
        if "naive" in ways:
            same = (source, place) == (tuning.network, speedup)
            rates_of = "" if same else f"{NETWORKS[source]} at {place:g}×"
            found.append(Tuned(tuning, speedup, rates_of, ways))
    return found


def tunings() -> list[Tuned]:
    """All tunings that have runs."""
    return [at for name in TUNINGS for at in shown(name)]


def _cells(name: str) -> Mapping[str, Any]:
    cells: Mapping[str, Any] = benchmark(f"study_{name}").get("cells", {})
    return cells


def tables() -> str:
    """Each way before and after tuning, for a few epochs and for many."""
    parts = []
    for at in tunings():
        rows, seeds = [], len(at.after("naive"))
        for arm, (rate, runs) in at.ways.items():
            before = [run["test"][0] for run in runs.values()]
            cpu = statistics.mean(run["CPU seconds"] for run in runs.values())
            ahead = "" if arm == "naive" else spread(at.ahead(arm))
            after = spread(at.after(arm))
            rows.append([arm, f"{rate:g}", spread(before), after, ahead, f"{cpu:.0f}"])
        ratio = f", C and D at {at.tuning.ep_rate:g} × the rate" if "EP" in at.ways else ""
        words = f"{at.network}, MACs ÷ {at.speedup:g}, {at.epochs}{ratio}, {seeds} seed"
        rate = "rate" if at.tuning.rates else "best rate"
        heads = [rate, "before tuning", "after", "− naive", "tuning, CPU s"]
        parts += [f"{words}{'s' if seeds > 1 else ''}:", table(["", *heads], rows)]
        parts += _remarks(at)
    return "\n\n".join(parts)


def _remarks(at: Tuned) -> list[str]:
    """What a reader of a table has to know beside it."""
    remarks = []
    if at.rates_of:
        remarks.append(
            f"Rates are those that were best for {at.rates_of}: none was chosen at this budget, so "
            "a way may be behind for its rate alone."
        )
    if at.tuning.augmented:
        remarks.append("Images are cropped and mirrored at random; rates are those of four epochs.")
    if at.tuning.sparse:
        runs = at.ways["naive"][1].values()
        cpu = statistics.mean(run["CPU seconds before"]["sparse learning"] for run in runs)
        given, learned = at.whole()
        stage = sparse_recipe(at.tuning.sparse).sparse
        assert stage is not None
        remarks.append(
            f"Sparse learning took {cpu:.0f} CPU s, and the whole network from {spread(given)} to "
            f"{spread(learned)}%. The paper does not say how it was done: rate {stage.lr:g} and "
            f"strength {stage.strength:g} are those of the recipe `resnet56-cifar10`, which has a "
            "hundred epochs of all 50,000 images for it."
        )
    return remarks


def _less(runs: Mapping[int, Any], others: Mapping[int, Any]) -> str:
    """Runs less others after tuning, by the seeds that both have."""
    seeds = [seed for seed in runs if seed in others]
    return spread([runs[seed]["test"][-1] - others[seed]["test"][-1] for seed in seeds])


def sparse_first() -> str:
    """Sparse learning first less as many epochs of tuning alone."""
    both = zip(shown("tuning_sparse"), shown("tuning_double"), strict=False)
    for first, alone in both:  # one speed-up; none as long as one of the two has no runs
        shared = (arm for arm in first.ways if arm in alone.ways)
        gains = [f"{arm} {_less(first.ways[arm][1], alone.ways[arm][1])}" for arm in shared]
        at = f"{first.network} at {first.speedup:g}×"
        return f"{at}, {first.epochs} less {alone.epochs} of tuning alone: {', '.join(gains)}"
    return ""


EQUAL_TIME = (("EP", "naive"), ("EP from recalibrated", "recalibrated"))


def equal_time() -> str:
    """EP less tuning without C and D for as many seconds, from the cut and recalibrated."""
    ep, parts = {at.speedup: at for at in shown("tuning_vgg")}, []
    for at in shown("tuning_vgg_equal"):
        gains = [
            f"{way} − {base} {_less(ep[at.speedup].ways[way][1], at.ways[base][1])}"
            for way, base in EQUAL_TIME
            if base in at.ways
        ]
        parts.append(f"{at.speedup:g}×: {', '.join(gains)}")
    return "; ".join(parts)


def ep_on_vgg(speedup: float) -> str:
    """EP less naive tuning of the VGG for as many epochs, and for as many seconds."""
    short, longer = (
        [at for at in shown(name) if at.speedup == speedup]
        for name in ("tuning_vgg", "tuning_vgg_equal")
    )
    if not short or not longer:
        return "not run"
    ep, naive = short[0].ways["EP"][1], longer[0].ways["naive"][1]
    return (
        f"{spread(short[0].ahead('EP'))} on the VGG16 at {speedup:g}×, is {_less(ep, naive)} "
        "against naive tuning for as many seconds"
    )


def resnet56() -> tuple[str, str] | None:
    """The whole ResNet-56 and where each way ends at 2.1×, and by how much the best is apart."""
    for at in shown("tuning_resnet56"):
        if at.speedup == 2.1:
            (whole,) = at.whole()
            ends = {arm: at.after(arm) for arm in at.ways}
            best = max(ends, key=lambda arm: statistics.mean(ends[arm]))
            gap = statistics.mean(ends[best]) - statistics.mean(whole)
            listed = ", ".join(f"{arm} {spread(end)}" for arm, end in ends.items())
            length = f"{at.epochs} of {at.tuning.images:,} images"
            words = f"{length}, no sparse learning: {spread(whole)} → {listed}"
            side = "above" if gap > 0 else "below"
            runs = at.ways["recalibrated"][1].values()
            untuned = spread([run["test"][0] for run in runs])
            verdict = (
                f"the best way, {best}, ends {abs(gap):.1f} points {side} after {at.epochs}; "
                f"recalibrated and not tuned it has {untuned}"
            )
            return words, verdict
    return None


def ahead_by(arm: str, base: str) -> str:
    """One way less another, means over seeds, over all tunings that have both: least and most."""
    gains = [
        statistics.mean(at.ahead(arm, base))
        for at in tunings()
        if arm in at.ways and base in at.ways
    ]
    least, most = (f"{gain:.1f}".replace("-", "−") for gain in (min(gains), max(gains)))
    wins = sum(gain > 0 for gain in gains)
    return f"{least} to {most} points, above zero in {wins} of {len(gains)} settings"


def overview() -> str:
    """Of each tuning one line: naive, and by how much the other ways are ahead, seed by seed."""
    pairs = (
        ("EP", "naive"),
        ("recalibrated", "naive"),
        ("EP from recalibrated", "recalibrated"),
    )
    rows = []
    for at in tunings():
        gains = [spread(at.ahead(*pair)) if pair[0] in at.ways else "" for pair in pairs]
        seeds, after = len(at.after("naive")), spread(at.after("naive"))
        ratio = f"{at.tuning.ep_rate:g}" if "EP" in at.ways else ""
        rows.append([at.network, f"{at.speedup:g}×", at.epochs, ratio, str(seeds), after, *gains])
    heads = ["MACs ÷", "tuned for", "rate of C and D ÷ that of weights", "seeds", "naive"]
    heads += [f"{arm} − {base}" for arm, base in pairs]
    remarks = {
        "Sparse learning": sparse_first(),
        "Equal time on the VGG16, 4 epochs of EP less 5 without C and D": equal_time(),
    }
    words = [f"{title}: {text}." for title, text in remarks.items() if text]
    return "\n\n".join([table(["", *heads], rows), *words])
