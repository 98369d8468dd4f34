"""After tuning: naive or Equivalent Pruning, from the cut or from where recalibration ends.

All ways share a seed's plans and batches. The rate of each is chosen with seed 0, by accuracy on
images that are neither tuned nor tested on: rates are tried until the best has a worse one on
either side. The other seeds are tuned at that rate alone, and so is the long tuning, which shows
whether a way that starts behind is ahead in the end.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

import obc
from benchmarks._curves import Batch, Data, accuracy, loss
from benchmarks._harness import CONSOLE, Cells
from benchmarks._networks import Folders, network
from benchmarks.equivalent_accuracy import DECAY, tune
from benchmarks.study.studies import BY_COST

RATES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
# Where the search for each way's rate begins: what was best for ResNet-20 at 4x.
FIRST = {"naive": 0.01, "EP": 0.001, "recalibrated": 0.003, "EP from recalibrated": 0.0003}
IMAGES, VALIDATION, BATCH, SAMPLES = 4096, 1000, 64, 512
ARMS = tuple(FIRST)


@dataclass(frozen=True)
class Tuning:
    """A network that is tuned at some speed-ups, for so many epochs.

    `ep_rate` is the rate of C and D over that of the weights, `ep_decay` their weight decay; a
    tuning of which `rates` names another takes the best rates of that one.
    """

    network: str
    speedups: tuple[float, ...]
    ep_rate: float
    ep_decay: float
    epochs: int = 4
    rates: str | None = None


# C and D as in the paper's table of hyper-parameters for ResNet-56 and for VGG19.
TUNINGS = {
    "tuning": Tuning("resnet20_padded", (4.0, 2.5), ep_rate=2.0, ep_decay=0.0),
    "tuning_long": Tuning(
        "resnet20_padded", (4.0,), ep_rate=2.0, ep_decay=0.0, epochs=16, rates="tuning"
    ),
    "tuning_vgg": Tuning("vgg16_quarter", (3.0, 9.0), ep_rate=0.2, ep_decay=5e-4),
}


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
    pruned: nn.Module, data: Data, held_out: Any, rate: float, tuning: Tuning, seed: int
) -> dict[str, Any]:
    """Accuracy on validation images after each epoch, and on test images before and at the end."""
    validation, test = [accuracy(pruned, held_out)], [accuracy(pruned, data.test)]

    def watch() -> None:
        validation.append(accuracy(pruned, held_out))

    ep_rate = tuning.ep_rate * rate
    groups = obc.parameter_groups(pruned, rate, DECAY, ep_rate, tuning.ep_decay)
    start = time.process_time()
    tune(pruned, data, tuning.epochs, BATCH, groups, seed, watch)
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
    """The rate to try next with seed 0: the first, or a neighbour of the best so far."""
    at = tried(cells, speedup, arm)
    if not at:
        return FIRST[arm]
    place = RATES.index(best_rate(cells, speedup, arm))
    around = RATES[max(place - 1, 0) : place + 2]
    return next((rate for rate in around if rate not in at), None)


def speedups_of(cells: Mapping[str, Any]) -> list[float]:
    """The speed-ups at which the best rate of each way is known."""
    known = sorted({float(key.split("x|")[0]) for key in cells})
    return [s for s in known if all(next_rate(cells, s, arm) is None for arm in ARMS)]


def arms(
    cells: Mapping[str, Any], speedup: float, chosen_by: Mapping[str, Any]
) -> dict[str, tuple[float, list[Any]]]:
    """Of each way its best rate, and its runs at that rate, of all seeds that each way has.

    The rate is the best of the cells that it was `chosen_by`; ways without a run are left out.
    """
    rates = {arm: best_rate(chosen_by, speedup, arm) for arm in ARMS}
    keys = {arm: f"{speedup:g}x|{arm}|{rate:g}|" for arm, rate in rates.items()}
    keys = {arm: key for arm, key in keys.items() if f"{key}0" in cells}
    seeds = sorted({key.rsplit("|", 1)[1] for key in cells}, key=int)
    shared = [seed for seed in seeds if all(key + seed in cells for key in keys.values())]
    return {arm: (rates[arm], [cells[key + seed] for seed in shared]) for arm, key in keys.items()}


def run(name: str, folders: Folders, seeds: int | None, scratch: Path | None) -> None:
    """The cells of a tuning that are not there yet."""
    tuning = TUNINGS[name]
    protocol = {
        **{"network": tuning.network, "images": IMAGES, "validation": VALIDATION},
        **{"epochs": tuning.epochs, "batch": BATCH, "samples": SAMPLES},
        **{"rate of C and D ÷": tuning.ep_rate, "weight decay of C and D": tuning.ep_decay},
    }
    cells = Cells(f"study_{name}", protocol)
    known = cells.results if tuning.rates is None else Cells(f"study_{tuning.rates}", {}).results
    for speedup in tuning.speedups:
        for seed in range(seeds or 3):
            bench = Bench(tuning, folders, speedup, seed, scratch)
            for arm in ARMS:
                if known is cells.results and not seed:
                    while (rate := next_rate(known, speedup, arm)) is not None:
                        bench.add(cells, arm, rate)
                elif tried(known, speedup, arm):
                    bench.add(cells, arm, best_rate(known, speedup, arm))


class Bench:
    """One speed-up and seed: data, plan and starts of all ways, made when they are needed."""

    def __init__(
        self, tuning: Tuning, folders: Folders, speedup: float, seed: int, scratch: Path | None
    ) -> None:
        self.tuning, self.folders, self.scratch = tuning, folders, scratch
        self.speedup, self.seed = speedup, seed
        self.starts: dict[str, nn.Module] = {}

    def add(self, cells: Cells, arm: str, rate: float) -> None:
        key = f"{self.speedup:g}x|{arm}|{rate:g}|{self.seed}"
        if key in cells.results:
            return
        if arm not in self.starts:
            self.starts[arm] = started(self.model, self.plan, self.data, arm)
        pruned = copy.deepcopy(self.starts[arm])
        cell = tuned(pruned, self.data, self.held_out, rate, self.tuning, self.seed)
        cells.add(key, cell)
        CONSOLE.print(key, cell["test"])

    @cached_property
    def network(self) -> tuple[nn.Module, Data]:
        return network(self.tuning.network, self.seed, self.folders, IMAGES + VALIDATION)

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
            name = f"tuning {self.tuning.network} {self.speedup:g}x {self.seed}"
            settings["resume"] = self.scratch / name
        example, batches = self.data.train[0][:1], self.data.batches(32)
        target = obc.MACs(speedup=self.speedup)
        return obc.plan(self.model, example, batches, loss, target=target, **settings)
