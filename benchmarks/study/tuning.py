"""After tuning: naive or Equivalent Pruning, from the cut or from where recalibration ends.

All ways share a seed's plans and batches. The rate of each is chosen with seed 0, by accuracy on
images that are neither tuned nor tested on: three rates first, then further ones for as long as
the best is at an end of those tried. The other seeds are tuned at that rate alone, and so is the
long tuning, which shows whether a way that starts behind is ahead in the end.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

import obc
from benchmarks._curves import Batch, Data, accuracy, loss
from benchmarks._harness import CONSOLE, Cells
from benchmarks._networks import Folders, network
from benchmarks.equivalent_accuracy import DECAY, EP_DECAY, tune
from benchmarks.study.studies import BY_COST

NETWORK = "resnet20_padded"
SPEEDUPS = (4.0, 2.5)
RATES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
FIRST = (0.01, 0.03, 0.003)
EP_RATE = 2.0  # that of C and D over that of the weights, as in the paper for ResNet-56
IMAGES, VALIDATION, BATCH, SAMPLES = 4096, 1000, 64, 512
EPOCHS = {"tuning": 4, "tuning_long": 16}
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


def tuned(
    pruned: nn.Module, data: Data, held_out: Any, rate: float, epochs: int, seed: int
) -> dict[str, Any]:
    """Accuracy on validation images after each epoch, and on test images before and at the end."""
    validation, test = [accuracy(pruned, held_out)], [accuracy(pruned, data.test)]

    def watch() -> None:
        validation.append(accuracy(pruned, held_out))

    groups = obc.parameter_groups(pruned, rate, DECAY, EP_RATE * rate, EP_DECAY)
    start = time.process_time()
    tune(pruned, data, epochs, BATCH, groups, seed, watch)
    seconds = time.process_time() - start
    test.append(accuracy(pruned, data.test))
    return {"validation": validation, "test": test, "CPU seconds": seconds}


def tried(cells: Mapping[str, Any], speedup: float, arm: str) -> dict[float, float]:
    """Accuracy on the validation images with seed 0, by rate, the lowest rate first."""
    keys = {rate: f"{speedup:g}x|{arm}|{rate:g}|0" for rate in RATES}
    return {rate: cells[key]["validation"][-1] for rate, key in keys.items() if key in cells}


def best_rate(cells: Mapping[str, Any], speedup: float, arm: str) -> float:
    """The rate that was best on the validation images, with seed 0."""
    at = tried(cells, speedup, arm)
    return max(at, key=lambda rate: at[rate])


def next_rate(cells: Mapping[str, Any], speedup: float, arm: str) -> float | None:
    """The rate to try next with seed 0: one of the first, or one beyond the end that is best."""
    at = list(tried(cells, speedup, arm))
    for rate in FIRST:
        if rate not in at:
            return rate
    best = best_rate(cells, speedup, arm)
    beyond = {at[0]: -1, at[-1]: 1}
    place = RATES.index(best) + beyond.get(best, 0)
    inside = 0 <= place < len(RATES) and RATES[place] not in at
    return RATES[place] if inside else None


def speedups_of(cells: Mapping[str, Any]) -> list[float]:
    """The speed-ups at which each way was tuned at the first rates, so that the best is known."""
    return sorted(s for s in SPEEDUPS if all(set(FIRST) <= tried(cells, s, a).keys() for a in ARMS))


def arms(
    cells: Mapping[str, Any], speedup: float, chosen_by: Mapping[str, Any] | None = None
) -> dict[str, tuple[float, list[Any]]]:
    """Of each way its best rate, and its runs at that rate, one for each seed.

    The rate is the best of these cells, or of those that it was `chosen_by`.
    """
    ways = {}
    for arm in ARMS:
        rate = best_rate(cells if chosen_by is None else chosen_by, speedup, arm)
        start = f"{speedup:g}x|{arm}|{rate:g}|"
        ways[arm] = (rate, [cell for key, cell in cells.items() if key.startswith(start)])
    return ways


def run(name: str, folders: Folders, seeds: int | None, scratch: Path | None) -> None:
    """The cells of "tuning" or "tuning_long" that are not there yet."""
    protocol = {
        **{"network": NETWORK, "images": IMAGES, "validation": VALIDATION, "epochs": EPOCHS[name]},
        **{"batch": BATCH, "samples": SAMPLES, "rate of C and D ÷": EP_RATE},
    }
    cells = Cells(f"study_{name}", protocol)
    short = cells if name == "tuning" else Cells("study_tuning", {})
    for speedup in SPEEDUPS:
        for seed in range(seeds or 3):
            bench = Bench(folders, speedup, seed, scratch)
            for arm in ARMS:
                if short is cells and not seed:
                    while (rate := next_rate(cells.results, speedup, arm)) is not None:
                        bench.add(cells, arm, rate)
                elif tried(short.results, speedup, arm):
                    bench.add(cells, arm, best_rate(short.results, speedup, arm))


class Bench:
    """One speed-up and seed: data, plan and starts of all ways, made when they are needed."""

    def __init__(self, folders: Folders, speedup: float, seed: int, scratch: Path | None) -> None:
        self.folders, self.speedup, self.seed, self.scratch = folders, speedup, seed, scratch
        self.starts: dict[str, nn.Module] = {}

    def add(self, cells: Cells, arm: str, rate: float) -> None:
        key = f"{self.speedup:g}x|{arm}|{rate:g}|{self.seed}"
        if key in cells.results:
            return
        if arm not in self.starts:
            self.starts[arm] = started(self.model, self.plan, self.data, arm)
        pruned, epochs = copy.deepcopy(self.starts[arm]), cells.protocol["epochs"]
        cell = tuned(pruned, self.data, self.held_out, rate, epochs, self.seed)
        cells.add(key, cell)
        CONSOLE.print(key, cell["test"])

    @cached_property
    def network(self) -> tuple[nn.Module, Data]:
        return network(NETWORK, self.seed, self.folders, IMAGES + VALIDATION)

    @property
    def model(self) -> nn.Module:
        return self.network[0]

    @property
    def held_out(self) -> Batch:
        x, y = self.network[1].train
        return x[IMAGES:], y[IMAGES:]

    @property
    def data(self) -> Data:
        x, y = self.network[1].train
        return Data((x[:IMAGES], y[:IMAGES]), self.network[1].test)

    @cached_property
    def plan(self) -> obc.Plan:
        settings = {"rows": 10, "step": 0.05, "seed": self.seed, **BY_COST}
        if self.scratch:
            settings["resume"] = self.scratch / f"tuning {self.speedup:g}x {self.seed}"
        example, batches = self.data.train[0][:1], self.data.batches(32)
        target = obc.MACs(speedup=self.speedup)
        return obc.plan(self.model, example, batches, loss, target=target, **settings)
