"""After tuning: naive or Equivalent Pruning, from the cut or from where recalibration ends.

All ways share a seed's plans and batches. The rate of each is chosen with seed 0, by accuracy on
images that are neither tuned nor tested on; the other seeds are tuned at that rate alone.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

import obc
from benchmarks._curves import Data, accuracy, loss
from benchmarks._harness import CONSOLE, Cells
from benchmarks._networks import Folders, network
from benchmarks.equivalent_accuracy import DECAY, EP_DECAY, tune
from benchmarks.study.studies import BY_COST

NETWORK = "resnet20_padded"
SPEEDUPS = (4.0, 2.5)
RATES = (0.01, 0.03, 0.003)
EP_RATE = 2.0  # that of C and D over that of the weights, as in the paper for ResNet-56
IMAGES, VALIDATION, EPOCHS, BATCH, SAMPLES = 4096, 1000, 4, 64, 512
ARMS = ("naive", "EP", "recalibrated", "EP from recalibrated")


def started(model: nn.Module, plan: obc.Plan, data: Data, arm: str) -> nn.Module:
    """The pruned network as tuning finds it."""
    init: Any = "identity"
    if "recalibrated" in arm:
        init = obc.apply(copy.deepcopy(model), plan)
        obc.recalibrate(init, model, data.train[0][:SAMPLES].split(64), samples=SAMPLES)
    if arm.startswith("EP"):
        return obc.apply(copy.deepcopy(model), plan, equivalent=True, init=init)
    return init if arm == "recalibrated" else obc.apply(copy.deepcopy(model), plan)


def tuned(pruned: nn.Module, data: Data, held_out: Any, rate: float, seed: int) -> dict[str, Any]:
    """Accuracy on validation images after each epoch, and on test images before and at the end."""
    validation, test = [accuracy(pruned, held_out)], [accuracy(pruned, data.test)]

    def watch() -> None:
        validation.append(accuracy(pruned, held_out))

    groups = obc.parameter_groups(pruned, rate, DECAY, EP_RATE * rate, EP_DECAY)
    start = time.process_time()
    tune(pruned, data, EPOCHS, BATCH, groups, seed, watch)
    seconds = time.process_time() - start
    test.append(accuracy(pruned, data.test))
    return {"validation": validation, "test": test, "CPU seconds": seconds}


def best_rate(cells: Mapping[str, Any], speedup: float, arm: str) -> float:
    """The rate that was best on the validation images, with seed 0."""
    at = {r: cells[f"{speedup:g}x|{arm}|{r:g}|0"]["validation"][-1] for r in RATES}
    return max(at, key=lambda r: at[r])


def speedups_of(cells: Mapping[str, Any]) -> list[float]:
    """The speed-ups at which each way was tuned at each rate, so that the best is known."""
    first = [f"{arm}|{rate:g}|0" for arm in ARMS for rate in RATES]
    return sorted(s for s in SPEEDUPS if all(f"{s:g}x|{key}" in cells for key in first))


def arms(cells: Mapping[str, Any], speedup: float) -> dict[str, tuple[float, list[Any]]]:
    """Of each way its best rate, and its runs at that rate, one for each seed."""
    ways = {}
    for arm in ARMS:
        rate = best_rate(cells, speedup, arm)
        start = f"{speedup:g}x|{arm}|{rate:g}|"
        ways[arm] = (rate, [cell for key, cell in cells.items() if key.startswith(start)])
    return ways


def run(folders: Folders, seeds: int | None, scratch: Path | None) -> None:
    protocol = {
        **{"network": NETWORK, "images": IMAGES, "validation": VALIDATION, "epochs": EPOCHS},
        **{"batch": BATCH, "samples": SAMPLES, "rates": RATES, "rate of C and D ÷": EP_RATE},
    }
    cells = Cells("study_tuning", protocol)
    for speedup in SPEEDUPS:
        for seed in range(seeds or 3):
            _one(cells, speedup, seed, folders, scratch)


def _one(cells: Cells, speedup: float, seed: int, folders: Folders, scratch: Path | None) -> None:
    def rates(arm: str) -> tuple[float, ...]:
        return (best_rate(cells.results, speedup, arm),) if seed else RATES

    keys = {f"{speedup:g}x|{a}|{r:g}|{seed}": (a, r) for a in ARMS for r in rates(a)}
    todo = {key: way for key, way in keys.items() if key not in cells.results}
    if not todo:
        return
    model, whole = network(NETWORK, seed, folders, IMAGES + VALIDATION)
    x, y = whole.train
    held_out = x[IMAGES:], y[IMAGES:]
    data = Data((x[:IMAGES], y[:IMAGES]), whole.test)
    settings = {"rows": 10, "step": 0.05, "seed": seed, **BY_COST}
    if scratch:
        settings["resume"] = scratch / f"tuning {speedup:g}x {seed}"
    target = obc.MACs(speedup=speedup)
    plan = obc.plan(model, x[:1], data.batches(32), loss, target=target, **settings)
    starts = {arm: started(model, plan, data, arm) for arm, _ in todo.values()}
    for key, (arm, rate) in todo.items():
        cell = tuned(copy.deepcopy(starts[arm]), data, held_out, rate, seed)
        cells.add(key, cell)
        CONSOLE.print(key, cell["test"])
