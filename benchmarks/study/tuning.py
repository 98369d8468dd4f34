"""After tuning: naive or Equivalent Pruning, from the cut or from where recalibration ends.

All ways share a seed's plans and batches. The rate of each is chosen with seed 0, by accuracy on
images that are neither tuned nor tested on: rates are tried until the best has a worse one on
either side. The other seeds are tuned at that rate alone, and so are tunings that take the rates of
another: longer ones and those of nearly all images, which show whether a way that starts behind is
ahead in the end, one of a network that learned sparsely before it was cut, and budgets in between.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.data import TensorDataset

import obc
from benchmarks._curves import Batch, Data, accuracy, loss
from benchmarks._harness import CONSOLE, Cells
from benchmarks._networks import Folders, network
from benchmarks.equivalent_accuracy import DECAY, tune
from benchmarks.study.studies import BY_COST
from obc.tuning.sparse import sparsify

RATES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
# Where the search for each way's rate begins: what was best for ResNet-20 at 4x.
FIRST = {"naive": 0.01, "EP": 0.001, "recalibrated": 0.003, "EP from recalibrated": 0.0003}
VALIDATION, BATCH, SAMPLES = 1000, 64, 512
ARMS = tuple(FIRST)


@dataclass(frozen=True)
class Tuning:
    """A network that is tuned at some speed-ups, for so many epochs.

    `ep_rate` is the rate of C and D over that of the weights, `ep_decay` their weight decay; a
    tuning of which `rates` names another takes the best rates of that one, at the nearest speed-up.
    `images` make an epoch, `augmented` by random crops and mirrored or as they are; `sparse` counts
    the epochs of sparse learning before the cut.
    """

    network: str
    speedups: tuple[float, ...]
    ep_rate: float
    ep_decay: float
    epochs: int = 4
    rates: str | None = None
    arms: tuple[str, ...] = ARMS
    images: int = 4096
    augmented: bool = False
    sparse: int = 0
    seeds: int = 3


# C and D as in the paper's table of hyper-parameters for ResNet-56 and for VGG19.
RESNET: dict[str, Any] = {"ep_rate": 2.0, "ep_decay": 0.0}
VGG: dict[str, Any] = {"ep_rate": 0.2, "ep_decay": 5e-4}
# Eight epochs, half of them sparse learning or none; C and D have no part in that question.
HALVED: dict[str, Any] = {"rates": "tuning", "arms": ("naive", "recalibrated"), **RESNET}
TUNINGS = {
    "tuning": Tuning("resnet20_padded", (4.0, 2.5), **RESNET),
    "tuning_double": Tuning("resnet20_padded", (4.0,), epochs=8, **HALVED),
    "tuning_sparse": Tuning("resnet20_padded", (4.0,), sparse=4, **HALVED),
    # The same network with C and D at a fifth of the rate, as the paper has it for VGG19.
    "tuning_gentle": Tuning("resnet20_padded", (4.0,), arms=("naive", "EP"), **VGG),
    "tuning_long": Tuning("resnet20_padded", (4.0,), epochs=16, rates="tuning", **RESNET),
    "tuning_resnet56": Tuning("resnet56_padded", (2.1, 8.0), **RESNET),
    "tuning_resnet56_between": Tuning(
        "resnet56_padded", (2.5, 4.0), rates="tuning_resnet56", seeds=1, **RESNET
    ),
    "tuning_vgg": Tuning("vgg16_quarter", (3.0, 9.0, 6.0, 12.0), **VGG),
    # As long as four epochs of EP take.
    "tuning_vgg_equal": Tuning(
        *("vgg16_quarter", (6.0, 9.0)),
        **{"epochs": 5, "rates": "tuning_vgg", "arms": ("naive", "recalibrated")},
        **VGG,
    ),
    "tuning_vgg_whole": Tuning(
        *("vgg16_quarter", (9.0,)),
        **{"epochs": 10, "rates": "tuning_vgg", "images": 45_000, "augmented": True, "seeds": 2},
        **VGG,
    ),
}


def sparse_recipe(epochs: int, seed: int = 0) -> obc.Recipe:
    """Sparse learning as in the recipe for the paper's ResNet-56, in fewer epochs.

    The paper says that there was sparse learning, not how: rate and strength are the recipe's own.
    Batches and images are those of the tuning, so that an epoch has as many steps.
    """
    paper = obc.Recipe.load("resnet56-cifar10")
    assert paper.sparse is not None
    milestones = [round(m * epochs / paper.sparse.epochs) for m in paper.sparse.milestones]
    stage = {**paper.sparse.model_dump(), "epochs": epochs, "milestones": milestones}
    return paper.changed(seed=seed, batch_size=BATCH, crop=0, flip=False, sparse=stage)


def started(model: nn.Module, plan: obc.Plan, data: Data, arm: str) -> nn.Module:
    """The pruned network as tuning finds it."""
    init: Any = "identity"
    if "recalibrated" in arm:
        init = obc.apply(copy.deepcopy(model), plan)
        obc.recalibrate(init, model, data.train[0][:SAMPLES].split(64), samples=SAMPLES)
    if arm.startswith("EP"):
        return obc.apply(copy.deepcopy(model), plan, equivalent=True, init=init)
    return init if arm == "recalibrated" else obc.apply(copy.deepcopy(model), plan)


def views(augmented: bool) -> Callable[[Tensor], Tensor]:
    """What is done to the images of a batch; crops are padded with the mean colour."""
    if not augmented:
        return lambda images: images
    from obc.data.augment import Augment  # kornia takes long to import

    return Augment((32, 32), 10, crop=4, flip=True).views


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
    tune(pruned, data, tuning.epochs, BATCH, groups, seed, watch, views(tuning.augmented))
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


def speedups_of(cells: Mapping[str, Any], ways: Sequence[str]) -> list[float]:
    """The speed-ups at which the best rate of each of these ways is known."""
    known = sorted({float(key.split("x|")[0]) for key in cells})
    return [s for s in known if all(next_rate(cells, s, arm) is None for arm in ways)]


def chosen_at(tuning: Tuning, speedup: float, known: Mapping[str, Any]) -> float | None:
    """The speed-up whose best rates a tuning takes; None as long as these are not known.

    That of the tuning itself, where it tries rates; else the nearest that the other one has.
    """
    searched = speedups_of(known, tuning.arms)
    places = [s for s in searched if tuning.rates is not None or s == speedup]
    return min(places, key=lambda s: abs(s - speedup), default=None)


def arms(
    cells: Mapping[str, Any], speedup: float, rates: Mapping[str, float]
) -> dict[str, tuple[float, dict[int, Any]]]:
    """Of each way its rate, and its runs at that rate by seed, of all seeds that each way has.

    Ways without a run are left out.
    """
    keys = {arm: f"{speedup:g}x|{arm}|{rate:g}|" for arm, rate in rates.items()}
    keys = {arm: key for arm, key in keys.items() if f"{key}0" in cells}
    seeds = sorted({int(key.rsplit("|", 1)[1]) for key in cells})
    shared = [seed for seed in seeds if all(f"{key}{seed}" in cells for key in keys.values())]
    return {
        arm: (rates[arm], {seed: cells[f"{key}{seed}"] for seed in shared})
        for arm, key in keys.items()
    }


def run(name: str, folders: Folders, seeds: int | None, scratch: Path | None) -> None:
    """The cells of a tuning that are not there yet."""
    tuning = TUNINGS[name]
    stage = sparse_recipe(tuning.sparse).sparse if tuning.sparse else None
    protocol = {
        **{"network": tuning.network, "images": tuning.images, "validation": VALIDATION},
        **{"epochs": tuning.epochs, "batch": BATCH, "samples": SAMPLES},
        **{"rate of C and D ÷": tuning.ep_rate, "weight decay of C and D": tuning.ep_decay},
        **({"augmented": "crop, flip"} if tuning.augmented else {}),
        "sparse learning": stage and stage.model_dump(),
    }
    cells = Cells(f"study_{name}", protocol)
    known = cells.results if tuning.rates is None else Cells(f"study_{tuning.rates}", {}).results
    for speedup in tuning.speedups:
        for seed in range(seeds or tuning.seeds):
            bench = Bench(tuning, folders, speedup, seed, scratch)
            for arm in tuning.arms:
                if known is cells.results and not seed:
                    while (rate := next_rate(known, speedup, arm)) is not None:
                        bench.add(cells, arm, rate)
                    continue
                place = chosen_at(tuning, speedup, known)
                if place is None:
                    sys.exit(f"no rates to take: run `python -m benchmarks.study {tuning.rates}`")
                bench.add(cells, arm, best_rate(known, place, arm))


class Bench:
    """One speed-up and seed: data, plan and starts of all ways, made when they are needed."""

    def __init__(
        self, tuning: Tuning, folders: Folders, speedup: float, seed: int, scratch: Path | None
    ) -> None:
        self.tuning, self.folders, self.scratch = tuning, folders, scratch
        self.speedup, self.seed, self.images = speedup, seed, tuning.images
        self.starts: dict[str, nn.Module] = {}
        self.seconds: dict[str, float] = {}

    def add(self, cells: Cells, arm: str, rate: float) -> None:
        key = f"{self.speedup:g}x|{arm}|{rate:g}|{self.seed}"
        if key in cells.results:
            return
        model, plan = self.model, self.plan
        if arm not in self.starts:
            with self.timed(arm):
                self.starts[arm] = started(model, plan, self.data, arm)
        pruned = copy.deepcopy(self.starts[arm])
        cell = tuned(pruned, self.data, self.held_out, rate, self.tuning, self.seed)
        parts = ("sparse learning", "planning", arm)
        before = {part: self.seconds[part] for part in parts if part in self.seconds}
        cells.add(key, {"whole": self.whole, **cell, "CPU seconds before": before})
        CONSOLE.print(key, cell["test"])

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """CPU seconds of a part that comes before tuning."""
        start = time.process_time()
        yield
        self.seconds[part] = time.process_time() - start

    @cached_property
    def network(self) -> tuple[nn.Module, Data]:
        return network(self.tuning.network, self.seed, self.folders, self.images + VALIDATION)

    @cached_property
    def model(self) -> nn.Module:
        """The network that is cut, after sparse learning if there is any."""
        model = copy.deepcopy(self.network[0])
        if self.tuning.sparse:
            task = obc.tasks.Classification(TensorDataset(*self.data.train))
            with self.timed("sparse learning"):
                sparsify(model, task, sparse_recipe(self.tuning.sparse, self.seed))
        return model

    @cached_property
    def whole(self) -> list[float]:
        """Accuracy on the test images, not cut: as it was given, and after sparse learning."""
        networks = [self.network[0], *([self.model] if self.tuning.sparse else [])]
        return [accuracy(model, self.data.test) for model in networks]

    @property
    def held_out(self) -> Batch:
        x, y = self.network[1].train
        return x[self.images :], y[self.images :]

    @property
    def data(self) -> Data:
        x, y = self.network[1].train
        return Data((x[: self.images], y[: self.images]), self.network[1].test)

    @cached_property
    def plan(self) -> obc.Plan:
        settings = {"rows": 10, "step": 0.05, "seed": self.seed, **BY_COST}
        resumed = False
        if self.scratch:
            first = " sparse" if self.tuning.sparse else ""
            name = f"tuning {self.tuning.network}{first} {self.speedup:g}x {self.seed}"
            settings["resume"] = self.scratch / name
            resumed = settings["resume"].exists()
        model, example, batches = self.model, self.data.train[0][:1], self.data.batches(32)
        target = obc.MACs(speedup=self.speedup)
        with self.timed("planning"):
            plan = obc.plan(model, example, batches, loss, target=target, **settings)
        if resumed:  # its seconds are not those of the whole planning
            del self.seconds["planning"]
        return plan
