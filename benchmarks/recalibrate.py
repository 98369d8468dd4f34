"""Accuracy without tuning, cut and recalibrated: networks, rankings, budgets and seeds.

Each cell (network, ranking, seed) is one planning run over all budgets; cells that the result
file already has are not run again; each says at which commit it was run. One network after
another:

    python -m benchmarks.recalibrate --networks digits vit mixer --seeds 5
    python -m benchmarks.recalibrate --networks resnet56 --cifar FOLDER --weights FOLDER
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import obc
from benchmarks._curves import Data, accuracy, points
from benchmarks._harness import CONSOLE, Cells, show
from benchmarks._networks import Folders, network

RANKINGS: dict[str, dict[str, Any]] = {
    "JC, as printed": {},
    "group JC ÷ cost": {"block": "group", "rank": "score/cost"},
    "redundancy ÷ cost": {"criterion": "redundancy", "rank": "score/cost"},
    "l2": {"criterion": "l2"},
    "random": {"criterion": "random"},
}
SPEEDUPS = {
    "resnet56": (1.5, 2.0, 3.0, 4.0),
    "resnet56_padded": (1.5, 2.0, 3.0, 4.0),
    "mobilenet": (1.15, 1.3),
}
EVERYWHERE = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
SAMPLES = 512


def cell(
    model: nn.Module, data: Data, ranking: str, speedups: Sequence[float], seed: int, options: Any
) -> dict[str, Any]:
    """Accuracies of one planning run, cut and recalibrated, at every budget that can be met."""
    own = {"rows": options.rows, "step": options.step, "seed": seed}
    settings = {**own, **RANKINGS[ranking]}
    batches, whole = data.batches(options.batch), accuracy(model, data.test)
    for count in range(len(speedups), 0, -1):
        try:
            run = points(model, data, batches, settings, speedups[:count], SAMPLES)
        except obc.ObcError as error:
            CONSOLE.print(f"{speedups[count - 1]:g}x left out: {error}")
            continue
        CONSOLE.print(ranking, run)
        return {"whole": whole, **run}
    return {"whole": whole, "planning seconds": 0.0, "points": []}


def tables(cells: dict[str, dict[str, Any]]) -> None:
    """Cut → recalibrated by ranking and budget, and the share of the loss that is left."""
    for name in dict.fromkeys(key.split("|")[0] for key in cells):
        rows, seeds = [], 0
        for ranking in RANKINGS:
            runs = [c for k, c in cells.items() if k.startswith(f"{name}|{ranking}|")]
            if not runs:
                continue
            seeds = max(seeds, len(runs))
            for at in zip(*(r["points"] for r in runs), strict=False):
                whole = statistics.mean(r["whole"] for r in runs)
                cut, after = (statistics.mean(p[k] for p in at) for k in ("cut", "recalibrated"))
                gains = [p["recalibrated"] - p["cut"] for p in at]
                spread = f" ± {statistics.stdev(gains):.1f}" if len(gains) > 1 else ""
                left = (whole - after) / (whole - cut) if whole > cut else 0.0
                rows.append(
                    (
                        *(ranking, f"{at[0]['speedup']:g}x", f"{whole:.1f}", f"{cut:.1f}"),
                        *(f"{after:.1f}", f"{statistics.mean(gains):+.1f}{spread}"),
                        *(f"{min(gains):+.1f}", f"{left:.2f}"),
                        f"{statistics.mean(p['seconds'] for p in at):.1f}",
                    )
                )
        columns = ("whole", "cut", "recalibrated", "gain", "worst gain", "loss left", "CPU s")
        show(f"{name}, {seeds} seeds", ("ranking", "MACs", *columns), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=["digits", "vit", "mixer"])
    parser.add_argument("--rankings", nargs="+", default=list(RANKINGS), choices=list(RANKINGS))
    parser.add_argument("--speedups", nargs="+", type=float, help="instead of the network's own")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--step", type=float, default=0.02)
    for name in ("cifar", "fashion", "imagenet", "weights", "mobilenet"):
        parser.add_argument(f"--{name}", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folders = Folders(
        *(getattr(options, n) for n in ("cifar", "fashion", "imagenet", "weights", "mobilenet"))
    )
    cells = Cells("recalibrate", {"samples": SAMPLES})
    for name in options.networks:
        for seed in range(options.seeds):
            todo = [r for r in options.rankings if f"{name}|{r}|{seed}" not in cells.results]
            if not todo:
                continue
            model, data = network(name, seed, folders)
            for ranking in todo:
                speedups = options.speedups or SPEEDUPS.get(name, EVERYWHERE)
                result = cell(model, data, ranking, speedups, seed, options)
                settings = {k: getattr(options, k) for k in ("rows", "batch", "step")}
                cells.add(f"{name}|{ranking}|{seed}", {**result, "settings": settings})
    tables(cells.results)


if __name__ == "__main__":
    main()
