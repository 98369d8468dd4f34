"""Accuracy without tuning, cut and recalibrated: networks, rankings, budgets and seeds.

Each cell (network, ranking, seed) is one planning run over all budgets; cells that the result
file already has are not run again; each says at which commit it was run. One network after
another:

    python -m benchmarks.recalibrate --networks digits vit mixer --seeds 5
    python -m benchmarks.recalibrate --networks resnet56 --cifar FOLDER --weights FOLDER
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import obc
from benchmarks._curves import Data, accuracy, loss
from benchmarks._harness import CONSOLE, RESULTS, commit, save, show
from benchmarks._networks import Folders, network

RANKINGS: dict[str, dict[str, Any]] = {
    "JC, as printed": {},
    "group JC ÷ cost": {"block": "group", "rank": "score/cost"},
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
    model: nn.Module, data: Data, ranking: str, speedups: Sequence[float], options: Any
) -> dict[str, Any]:
    """Accuracies of one planning run, cut and recalibrated, at every budget."""
    batches, example = data.batches(options.batch), data.test[0][:1]
    targets = [obc.MACs(speedup=s) for s in speedups]
    settings = {"rows": options.rows, "step": options.step, **RANKINGS[ranking]}
    start = time.process_time()
    plans = obc.plan(model, example, batches, loss, target=targets, **settings)
    seconds = time.process_time() - start
    calibration = data.train[0][:SAMPLES].split(64)
    points = []
    for speedup, plan in zip(speedups, plans, strict=True):
        pruned = obc.apply(copy.deepcopy(model), plan)
        cut = accuracy(pruned, data.test)
        start = time.process_time()
        account = obc.recalibrate(pruned, model, calibration)
        point = {
            "speedup": speedup,
            "cut": cut,
            "recalibrated": accuracy(pruned, data.test),
            "seconds": time.process_time() - start,
            "residual": account.residual,
            "kept": account.kept,
            "error": [account.before, account.after],
        }
        CONSOLE.print(ranking, point)
        points.append(point)
    return {"whole": accuracy(model, data.test), "planning seconds": seconds, "points": points}


def tables(cells: dict[str, dict[str, Any]]) -> None:
    """Cut → recalibrated by ranking and budget, and the share of the loss that is left."""
    for name in dict.fromkeys(key.split("|")[0] for key in cells):
        rows, seeds = [], 0
        for ranking in RANKINGS:
            runs = [c for k, c in cells.items() if k.startswith(f"{name}|{ranking}|")]
            if not runs:
                continue
            seeds = max(seeds, len(runs))
            for at in zip(*(r["points"] for r in runs), strict=True):
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
    path = RESULTS / "recalibrate.json"
    cells: dict[str, Any] = json.loads(path.read_text())["cells"] if path.exists() else {}
    for name in options.networks:
        for seed in range(options.seeds):
            todo = [r for r in options.rankings if f"{name}|{r}|{seed}" not in cells]
            if not todo:
                continue
            model, data = network(name, seed, folders)
            for ranking in todo:
                speedups = options.speedups or SPEEDUPS.get(name, EVERYWHERE)
                result = cell(model, data, ranking, speedups, options)
                settings = {k: getattr(options, k) for k in ("rows", "batch", "step")}
                cells[f"{name}|{ranking}|{seed}"] = {
                    **result,
                    "settings": settings,
                    "commit": commit(),
                }
                save("recalibrate", {"samples": SAMPLES, "cells": cells})
    tables(cells)


if __name__ == "__main__":
    main()
