"""Short tuning from a recalibrated start: C and D at several rates, against naive tuning.

ResNet-20 on the digits, cut by group JC ÷ cost, recalibrated, tuned on 1,101 images; each way's
rate is chosen on 336 others, and judged on the 360 test images. One seed is one call; seeds that
the result file has are kept:

    python -m benchmarks.recalibrated_start --seed 0
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
from typing import Any

import torch

import obc
from benchmarks import _curves
from benchmarks._harness import RESULTS, save, show
from benchmarks.equivalent_accuracy import DECAY, tune

SPEEDUPS = (4.0,)
EPOCHS, BATCH, TUNED = 2, 32, 1101
RATES = (0.003, 0.01)
FACTORS = (0.1, 0.5, 2.0)  # the rate of C and D over that of weights; the paper has 2


def arms() -> dict[str, tuple[float, float | None]]:
    """Rate of the weights, and of C and D, if there are any."""
    naive: dict[str, tuple[float, float | None]] = {f"naive, {r:g}": (r, None) for r in RATES}
    return naive | {f"EP, {r:g}, {f:g}": (r, f * r) for r in RATES for f in FACTORS}


def one_seed(seed: int) -> dict[str, Any]:
    """Accuracies on validation and test images, by budget and arm."""
    data = _curves.digits(seed)
    x, y = data.train
    fit = _curves.Data((x[:TUNED], y[:TUNED]), (x[TUNED:], y[TUNED:]))
    model = _curves.trained(fit, seed, 8)
    settings: dict[str, Any] = {"block": "group", "rank": "score/cost", "rows": 10, "step": 0.02}
    targets = [obc.MACs(speedup=s) for s in SPEEDUPS]
    plans = obc.plan(model, x[:1], fit.batches(32), _curves.loss, target=targets, **settings)
    found: dict[str, Any] = {"whole": _curves.accuracy(model, data.test)}
    for speedup, plan in zip(SPEEDUPS, plans, strict=True):
        fitted = obc.apply(copy.deepcopy(model), plan)
        cut = _curves.accuracy(fitted, data.test)
        obc.recalibrate(fitted, model, fit.train[0][:512].split(64))
        point = {"cut": [0.0, cut], "recalibrated": _both(fitted, fit, data)}
        for arm, (rate, factors) in arms().items():
            tuned = copy.deepcopy(fitted)
            if factors is not None:
                tuned = obc.apply(copy.deepcopy(model), plan, equivalent=True, init=fitted)
            groups = obc.parameter_groups(tuned, rate, DECAY, factors)
            tune(tuned, fit, EPOCHS, BATCH, groups, seed)
            point[arm] = _both(obc.merge(tuned), fit, data)
        found[f"{speedup:g}x"] = point
    return found


def _both(model: Any, fit: _curves.Data, data: _curves.Data) -> list[float]:
    return [_curves.accuracy(model, part) for part in (fit.test, data.test)]


def table(seeds: dict[str, Any]) -> None:
    """By budget: test accuracy at the rate that is best on validation images, over all seeds."""
    rows = []
    for speedup in (f"{s:g}x" for s in SPEEDUPS):
        points = [run[speedup] for run in seeds.values()]
        cells = [statistics.mean(p[k][1] for p in points) for k in ("cut", "recalibrated")]
        best = {}
        for way in ("naive", "EP"):
            names = [a for a in arms() if a.startswith(way)]
            best[way] = max(names, key=lambda a: statistics.mean(p[a][0] for p in points))
        ends = [f"{statistics.mean(p[a][1] for p in points):.1f} ({a})" for a in best.values()]
        gains = [p[best["EP"]][1] - p[best["naive"]][1] for p in points]
        rows.append(
            (speedup, *(f"{c:.1f}" for c in cells), *ends, f"{statistics.mean(gains):+.1f}")
        )
    columns = ("MACs", "cut", "recalibrated", "tuned naively", "tuned by EP", "EP - naive")
    show(f"digits, ResNet-20, {EPOCHS} epochs, {len(seeds)} seeds", columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / "recalibrated_start.json"
    seeds: dict[str, Any] = json.loads(path.read_text())["seeds"] if path.exists() else {}
    if str(options.seed) not in seeds:
        seeds[str(options.seed)] = one_seed(options.seed)
        save("recalibrated_start", {"epochs": EPOCHS, "batch": BATCH, "seeds": seeds})
    table(seeds)


if __name__ == "__main__":
    main()
