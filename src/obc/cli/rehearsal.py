"""`obc run --dry-run`: two steps of everything on synthetic images, and what the run will cost."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

from obc.cli.inputs import example_of
from obc.cli.output import Output, Result
from obc.criteria.score import score
from obc.data.images import Images, Loaded
from obc.data.sources import source_of
from obc.equivalent.apply import apply
from obc.planning.planner import plan as make_plan
from obc.plans.plan import Plan
from obc.running.modules import duplicate
from obc.tasks.classification import Classification
from obc.tasks.recalibration import recalibrate_for
from obc.tasks.task import Task
from obc.tracing.tracer import trace
from obc.tuning.recipe import Prune, Recipe
from obc.tuning.sparse import sparsify
from obc.tuning.trainer import finetune

_STEPS = 2
_SIZE = 8  # samples of a step where there is no GPU


@dataclass(frozen=True)
class Published:
    """A data set as its authors describe it, for rehearsals without it."""

    shape: tuple[int, ...]
    classes: int
    train: int
    test: int


PUBLISHED = {
    "cifar10": Published((3, 32, 32), 10, 50_000, 10_000),
    "cifar100": Published((3, 32, 32), 100, 50_000, 10_000),
    "fashion-mnist": Published((1, 28, 28), 10, 60_000, 10_000),
    "folder": Published((3, 224, 224), 1000, 1_281_167, 50_000),  # ImageNet, as the recipes mean it
}


@dataclass(frozen=True)
class Stage:
    """One part of a run: how many steps, of how many samples, at how many a second."""

    name: str
    steps: int
    samples: int
    rate: float

    @property
    def hours(self) -> float:
        return self.steps * self.samples / self.rate / 3600


def synthetic(data: Published, size: int) -> Classification:
    """A few steps of random images in the shape of a data set."""
    random = torch.Generator().manual_seed(0)

    def images(count: int) -> Loaded:
        pixels = torch.randn(count, *data.shape, generator=random)
        labels = torch.randint(data.classes, (count,), generator=random)
        channels = data.shape[0]
        names = [str(n) for n in range(data.classes)]
        return Loaded(pixels, labels, names, [0.0] * channels, [1.0] * channels)

    return Classification(images((_STEPS + 1) * size), images(size), name="synthetic images")


def published(task: Task) -> Published | None:
    """What a task's images are like, if it has images."""
    train, test = task.train, task.test
    if not isinstance(train, Images) or not isinstance(test, Images):
        return None
    return Published(train.shape, len(train.classes), len(train), len(test))


@dataclass
class Rehearsal:
    """All stages of a recipe in small.

    Args:
        out: where to say what is being done.
        recipe: whose run is rehearsed.
        task: what the model is for, if its data are at hand.
        data: what the data are like, if they are images.
        model: whole, and left alone.
    """

    out: Output
    recipe: Recipe
    task: Task | None
    data: Published | None
    model: nn.Module
    stages: list[Stage] = field(default_factory=list)

    def __post_init__(self) -> None:
        recipe, cuda = self.recipe, torch.cuda.is_available()
        assert recipe.prune is not None
        self.prune: Prune = recipe.prune
        self.size = recipe.batch_size if cuda else min(recipe.batch_size, _SIZE)
        amp = "no" if recipe.amp == "fp16" and not cuda else recipe.amp
        if amp != recipe.amp:
            self.out.note("amp = 'fp16' needs a GPU, and was not rehearsed")
        self.small = recipe.changed(
            batch_size=self.size,
            accumulate=1,
            epochs=1,
            warmup_epochs=0,
            milestones=[],
            amp=amp,
            prune=None,
            sparse=None,
        )
        self.few = self._few()

    def _few(self) -> Task:
        """A task of a few steps, synthetic where its data are images."""
        if self.data is not None:
            return synthetic(self.data, self.size)
        assert self.task is not None
        few = copy.copy(self.task)
        batches = list(islice(self.task.training(self.size), _STEPS + 1))
        few.train, few.test = source_of(batches, None), source_of(batches[:1], None)
        return few

    def run(self) -> Result:
        """Every stage once; a table of what the whole will take."""
        whole = self.model
        example = example_of(whole, self.few)
        if self.recipe.sparse is not None:
            self._sparse(duplicate(whole))
        plan = self._plan(whole, example)
        pruned = apply(duplicate(whole), plan)
        if self.prune.recalibrate:
            self._recalibrate(duplicate(pruned), whole)
        if self.prune.equivalent:
            pruned = apply(duplicate(whole), plan, equivalent=True)
        memory = self._memory(pruned)
        self._tune(pruned)
        self._evaluate(whole)
        return self._told(plan, memory)

    def _sparse(self, model: nn.Module) -> None:
        stage = self.recipe.sparse
        assert stage is not None
        few = stage.model_copy(update={"epochs": 1, "milestones": []})
        small = self.small.changed(sparse=few.model_dump(), prune=self.prune.model_dump())
        with self.out.doing("sparse learning"), _clock(model) as rate:
            sparsify(model, self.few, small)
        self._add("sparse learning", stage.epochs * self._epoch, rate() * self.size)

    def _plan(self, model: nn.Module, example: Any) -> Plan:
        """By weights alone, which takes no data: whether the target can be met, in what steps."""
        prune = self.prune
        with self.out.doing("planning"):
            plan: Plan = make_plan(
                model,
                example,
                target=prune.target,
                criterion="l1",
                step=prune.step,
                pace=prune.pace,
                sites=prune.sites,
                ignore=prune.ignore,
            )
            sites = trace(model, example, ignore=prune.ignore)
            batch = next(iter(self.few.calibration(self.size)))
            for _ in range(_STEPS):
                start = time.perf_counter()
                score(model, sites, [batch], self.few.loss, prune.criterion)
            seconds = time.perf_counter() - start
        steps = len(plan.history) * prune.rows
        self._add("planning", steps, self.few.size(batch) / seconds, prune.batch_size)
        return plan

    def _recalibrate(self, pruned: nn.Module, whole: nn.Module) -> None:
        count = _STEPS * self.size
        with self.out.doing("recalibrating"):
            start = time.perf_counter()
            recalibrate_for(self.few, pruned, whole, samples=count, batch_size=self.size)
            seconds = time.perf_counter() - start
        self._add("recalibration", 1, count / seconds, self.prune.recalibrate)

    def _tune(self, model: nn.Module) -> None:
        teacher = self.model if self.recipe.distill else None
        with self.out.doing("tuning"), _clock(model) as rate:
            finetune(model, self.few, self.small, teacher=teacher)
        self._add("tuning", self.recipe.epochs * self._epoch, rate() * self.size)

    def _evaluate(self, model: nn.Module) -> None:
        with self.out.doing("evaluating"):
            start = time.perf_counter()
            self.few.evaluate(model)
            seconds = time.perf_counter() - start
        if self.data is not None:  # how much a task of your own tests on only it knows
            self._add("evaluation", self.recipe.epochs, self.size / seconds, self.data.test)

    @property
    def _epoch(self) -> int:
        """Steps of an epoch."""
        if self.data is not None:
            return self.data.train // self.recipe.batch_size
        assert self.task is not None
        return self.task.steps(self.recipe.batch_size)

    def _add(self, name: str, steps: int, rate: float, samples: int | None = None) -> None:
        self.stages.append(Stage(name, steps, samples or self.recipe.batch_size, rate))

    def _memory(self, model: nn.Module) -> int:
        """Of tuning, in bytes: weights, gradients, optimizer, teacher, and saved activations."""
        batch = next(iter(self.few.training(self.size)))
        each = activations(duplicate(model).train(), self.few, batch) / self.size
        copies = 2 + (2 if self.recipe.optimizer == "adamw" else 1)
        copies += self.recipe.ema is not None
        weights = copies * _bytes(model) + (_bytes(self.model) if self.recipe.distill else 0)
        return round(weights + each * self.recipe.batch_size / self.recipe.accumulate)

    def _told(self, plan: Plan, memory: int) -> Result:
        assert plan.before is not None and plan.after is not None
        device = "GPU" if torch.cuda.is_available() else "CPU"
        hours = sum(stage.hours for stage in self.stages)
        table = Table(title=f"Rehearsed on this {device} in steps of {self.size}")
        table.add_column("stage")
        for head in ("steps", "samples each", "samples/s", "hours"):
            table.add_column(head, justify="right")
        for s in self.stages:
            numbers = f"{s.steps:,}", f"{s.samples:,}", f"{s.rate:.1f}", f"{s.hours:.3g}"
            table.add_row(s.name, *numbers)
        table.add_row("all", "", "", "", f"{hours:.3g}")
        self.out.say(table)
        parts = f", each in {self.recipe.accumulate} parts" if self.recipe.accumulate > 1 else ""
        self.out.say(
            f"target: {self.prune.target} can be met, in about {len(plan.history)} steps of "
            f"planning: {plan.before.macs / 1e9:.3g} G MACs to {plan.after.macs / 1e9:.3g} G\n"
            f"memory: about {memory / 1e9:.3g} GB to tune by batches of {self.recipe.batch_size} "
            f"in float32 on one device{parts}"
        )
        return {
            "stages": {
                s.name: {
                    "steps": s.steps,
                    "samples each": s.samples,
                    "samples per second": s.rate,
                    "hours": s.hours,
                }
                for s in self.stages
            },
            "hours": hours,
            "memory": memory,
            "macs": [plan.before.macs, plan.after.macs],
            "data checked": self.task is not None,
            "notes": self.out.notes,
        }


@contextmanager
def _clock(model: nn.Module) -> Iterator[Callable[[], float]]:
    """Steps a second of what trains a model, which may be a copy of it, from the second step on."""
    times: list[float] = []

    def tick(module: nn.Module, _: Any) -> None:
        if module.training:
            times.append(time.perf_counter())

    hook = model.register_forward_pre_hook(tick)
    try:
        yield lambda: (len(times) - 1) / (times[-1] - times[0])
    finally:
        hook.remove()


def activations(model: nn.Module, task: Task, batch: Any) -> int:
    """Bytes that autograd keeps for the backward pass of a batch, beside the weights."""
    weights = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = task.loss(model, batch)  # alive until counted, or addresses would be used again
    total = sum(size for place, size in kept.items() if place not in weights)
    del loss
    return total


def _bytes(model: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())
