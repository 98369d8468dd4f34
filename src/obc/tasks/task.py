"""`Task`: what a model is for. Everything above planning asks a task, and knows no metric itself.

| a task says | for |
| --- | --- |
| `name`, `protocol` | titles, and one line on how its numbers are measured |
| `metrics` | what is measured: the first counts, each knows its direction, unit and printing |
| `example()` | one input, to trace and to count with |
| `calibration(size)` | batches to score and to recalibrate with, from the training data |
| `steps(size)`, `training(size, …)` | an epoch: its length, its batches from any step on |
| `loss(model, batch)` | planning and tuning |
| `evaluate(model, split)` | an `Evaluation`, over all test data or one of two disjoint halves |
| `distance(student, teacher, temperature)` | distillation |

Any object with these serves. `Task` itself has all of them but `loss`, for data of any kind, so
that a task of your own is that one method and, where the mean loss is not what you judge by,
`metrics`, `outcomes` and `summary`. A task whose outputs say little about what it measures, as a
detector's, can have a `judge(model, batches)`, as `obc.recalibrate` wants it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map
from typing_extensions import Unpack

from obc.data.order import Order
from obc.data.sources import Batches, Collate, Source, moved, parts_of, size_of, source_of
from obc.errors import ObcError
from obc.running.forward import evaluating, outputs
from obc.running.processes import Group
from obc.tasks.evaluation import Evaluation, Metric

Split = Literal["test", "search", "promise"]
HALVES: dict[str, int | None] = {"test": None, "search": 0, "promise": 1}
_LABELS = ("labels", "label", "targets", "target")


class Task:
    """A loss on data of any kind: images of `obc.data`, a DataLoader, a data set, a list.

    Args:
        train: the training data; calibration batches are drawn from it too.
        test: the data to evaluate on, if there is any.
        name: what the task is called in titles.
        collate: makes a batch of a list of samples, where the data are samples.

    >>> class Line(Task):
    ...     def loss(self, model, batch):
    ...         x, y = batch
    ...         return F.mse_loss(model(x), y)
    >>> x = torch.linspace(-1, 1, 8)[:, None]
    >>> task = Line(train=[(x, 2 * x)], test=[(x, 2 * x)], name="a line")
    >>> str(task.evaluate(nn.Linear(1, 1)))
    'loss ...'
    """

    metrics: Sequence[Metric] = (Metric("loss", higher=False, digits=4),)
    # What `obc prune` plans and recalibrates with, unless it is told otherwise.
    planning: Mapping[str, Any] = {"rows": 50, "step": 0.0025, "batch_size": 128, "samples": 512}
    # Whether recalibration makes residual sums its targets; None lets held-out inputs decide.
    residual: bool | None = None
    # Which weights it fits, and on whose inputs: the `source` of `obc.recalibrate`.
    fitted_on: Literal["pruned", "original", "sums"] = "pruned"

    def __init__(
        self,
        train: Any = None,
        test: Any = None,
        *,
        name: str = "",
        collate: Collate | None = None,
    ) -> None:
        self.name = name or type(self).__name__.lower()
        self.train: Source | None = None if train is None else source_of(train, collate)
        self.test: Source | None = None if test is None else source_of(test, collate)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The mean loss of a batch: what is differentiated to plan, and minimised to tune."""
        raise NotImplementedError(f"{type(self).__name__} has no loss(model, batch)")

    def outcomes(self, model: nn.Module, batch: Any) -> Tensor:
        """What is measured of each sample, [samples, k]; here the batch's loss for each of them."""
        return self.loss(model, batch).expand(size_of(batch), 1)

    def summary(self, totals: Tensor, count: int) -> Sequence[float]:
        """A value for each metric, from outcomes summed over `count` samples; here their means."""
        means: list[float] = (totals / count).tolist()
        return means

    def total(self, outcomes: Tensor) -> Tensor:
        """The sum of a batch's outcomes."""
        return outcomes.double().sum(0)

    @property
    def protocol(self) -> str:
        """How the metrics are measured, in one line."""
        data = self.test.described() if self.test is not None else {}
        counts = ", ".join(f"{v} {k}" for k, v in data.items() if isinstance(v, int))
        return f"{counts or 'test data'} of {self.name}, eval mode"

    def example(self) -> Any:
        """The first sample's inputs: a tensor, a tuple of arguments, or a dict of them."""
        batch = next(iter(self._source("train").test(1)))
        return tree_map(lambda x: x[:1] if isinstance(x, Tensor) else x, self.inputs(batch))

    def inputs(self, batch: Any) -> Any:
        """What of a batch the model takes: all but the labels of a dict, the first of a pair."""
        if isinstance(batch, Mapping):
            return {k: v for k, v in batch.items() if k not in _LABELS}
        return batch[0] if isinstance(batch, (tuple, list)) else batch

    def calibration(self, size: int = 128) -> Iterable[Any]:
        """Training batches in an order drawn anew for each round, as a shuffling loader's are."""
        source = self._source("train")
        return source.batches if isinstance(source, Batches) else Calibration(source, size)

    def steps(self, size: int, world: int = 1) -> int:
        """How many batches of `size`, shared by `world` processes, an epoch has."""
        return self._source("train").count(size, world)

    def training(
        self, size: int, *, device: torch.device | None = None, **order: Unpack[Order]
    ) -> Iterator[Any]:
        """The batches of one epoch, the same however often one asks.

        `size` is that of a whole batch, over all processes; `device` is where the batches are
        wanted; `order` is `seed`, `epoch`, `start`, `rank` and `world` of `obc.data.order.Order`.
        """
        batches = self._source("train").train(size, **order)
        return (moved(batch, device) for batch in batches)

    def parts(self, batch: Any, count: int) -> list[Any]:
        """A batch in smaller ones, for gradients that are accumulated."""
        return parts_of(batch, count) if count > 1 else [batch]

    def size(self, batch: Any) -> int:
        """The number of samples of a batch."""
        return size_of(batch)

    def fitted(self, model: str) -> str:
        """The name of a model with the options that suit the data; here as it is."""
        return model

    def changed(self, **options: Any) -> Task:
        """The same task with a recipe's options for training data and loss; here there are none."""
        for name in options:
            raise ObcError(
                f"{name}: {type(self).__name__} has no such option; "
                "batches of your own bring their own augmentation"
            )
        return self

    @torch.no_grad()
    def evaluate(
        self, model: nn.Module, split: Split = "test", group: Group | None = None
    ) -> Evaluation:
        """Measure a model, in eval mode meanwhile and as it was afterwards.

        `split` is all of the test data, or one of two halves without a common sample: "search" to
        choose by, "promise" to judge the choice by. Calibration batches come from the training
        data, so the three never overlap. In several processes each takes its share of `group`;
        alone, the outcome of each sample is kept.
        """
        rank, world = (group.rank, group.count) if group is not None else (0, 1)
        batches = self._source("test").test(rank=rank, world=world, half=HALVES[split])
        device = device_of(model)
        rows: list[Tensor] = []
        totals = torch.zeros((), dtype=torch.float64, device=device)
        with evaluating(model):
            for batch in batches:
                outcomes = self.outcomes(model, moved(batch, device))
                totals = totals + self.total(outcomes)
                rows.append(outcomes.double().cpu())
        return self._evaluation(rows, totals, split, group)

    def _evaluation(
        self, rows: list[Tensor], totals: Tensor, split: Split, group: Group | None
    ) -> Evaluation:
        count = torch.tensor(float(sum(map(len, rows))), dtype=torch.float64, device=totals.device)
        sums = torch.cat([totals.reshape(-1), count.reshape(1)])
        if group is not None:
            width = int(group.largest(torch.tensor([len(sums)])))
            sums = group.summed(F.pad(sums, (max(0, width - len(sums)), 0)))
        if not sums[-1]:
            raise ObcError("there is nothing to evaluate on")
        values = self.summary(sums[:-1], round(float(sums[-1])))
        protocol = self.protocol if split == "test" else f"the {split} half of {self.protocol}"
        samples = torch.cat(rows) if group is None else None
        return Evaluation(tuple(self.metrics), tuple(map(float, values)), protocol, samples)

    def speed(self, model: nn.Module) -> dict[str, float]:
        """What a model does in a second, by name, where there is more to say than one example."""
        return {}

    def distance(self, student: Any, teacher: Any, temperature: float) -> Tensor:
        """How far a model's output is from its teacher's; here their mean squared difference."""
        pairs = zip(outputs(student), outputs(teacher), strict=True)
        squares = [F.mse_loss(a, b) for a, b in pairs if a.is_floating_point()]
        return torch.stack(squares).mean()

    def _source(self, which: Literal["train", "test"]) -> Source:
        source = self.train if which == "train" else self.test
        if source is None:
            raise ObcError(f"this task has no {which} data")
        return source


@dataclass(frozen=True)
class Calibration:
    """Batches to score with: each round in an order of its own, drawn from torch's generator."""

    source: Source
    size: int

    def __iter__(self) -> Iterator[Any]:
        length = getattr(self.source, "__len__", None)
        size = self.size if length is None else min(self.size, length())
        return self.source.train(size, seed=int(torch.randint(2**31, ())))


def device_of(model: nn.Module) -> torch.device:
    """Where a model's first parameter is."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))
