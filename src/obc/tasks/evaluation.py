"""Metrics, which know which way is better and how they are printed, and what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from obc.errors import ObcError, closest


@dataclass(frozen=True)
class Metric:
    """One kind of number that says how good a model is.

    Args:
        name: what it is called in JSON, in histories and in targets, such as "top1".
        higher: whether more is better.
        unit: printed behind the number, such as "%".
        digits: printed behind the point.
        label: what it is called in tables and figures; the name if there is none.
        most: the largest value there is, for the axis of a figure.

    >>> accuracy, error = Metric("top1", unit="%", label="top-1"), Metric("rmse", higher=False)
    >>> accuracy.text(92.615), error.better(0.2, than=0.3)
    ('92.61%', True)
    """

    name: str
    higher: bool = True
    unit: str = ""
    digits: int = 2
    label: str = ""
    most: float | None = None

    # Records hold metrics, and read them with suspicion.
    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid"}

    @property
    def title(self) -> str:
        """The label with its unit and which way is better, to stand above a column."""
        return " ".join(filter(None, (self.label or self.name, self.unit, self.arrow)))

    @property
    def arrow(self) -> str:
        """Which way is better."""
        return "↑" if self.higher else "↓"

    def text(self, value: float) -> str:
        """A value as people read it."""
        return f"{value:.{self.digits}f}{self.unit}"

    def told(self, value: float) -> str:
        """A value with the name of what it is: "top-1 92.61%"."""
        return f"{self.label or self.name} {self.text(value)}"

    def better(self, value: float, than: float) -> bool:
        """Whether one value is better than another; what is not finite is better than nothing."""
        if not math.isfinite(value):
            return False
        if not math.isfinite(than):
            return True
        return value > than if self.higher else value < than


@dataclass(frozen=True)
class Evaluation:
    """What a model was measured to be worth: one value for each metric, the first of which counts.

    `evaluation.value` is that one; others are found by name, `evaluation["loss"]` or
    `evaluation.loss`. `samples` holds one row of outcomes for each sample, in the order of the
    data, so that two models can be compared sample by sample; `Task.summary` makes values of them.

    >>> evaluation = Evaluation((Metric("rmse", higher=False, digits=3),), (0.25,), "8 samples")
    >>> evaluation.value, evaluation.rmse, str(evaluation)
    (0.25, 0.25, 'rmse 0.250')
    """

    metrics: tuple[Metric, ...]
    values: tuple[float, ...]
    protocol: str = ""
    samples: Tensor | None = field(default=None, repr=False, compare=False)

    @property
    def metric(self) -> Metric:
        """The metric that counts."""
        return self.metrics[0]

    @property
    def value(self) -> float:
        """The value that counts."""
        return self.values[0]

    def __getitem__(self, name: str) -> float:
        named = self.named()
        if name not in named:
            raise ObcError(
                f"no metric named '{name}'{closest(name, named)}; there are {', '.join(named)}",
                section="names",
            )
        return named[name]

    def __getattr__(self, name: str) -> float:
        if name.startswith("_") or name not in self.named():
            raise AttributeError(name)
        return self.named()[name]

    def named(self) -> dict[str, float]:
        """All values by the names of their metrics."""
        return {m.name: v for m, v in zip(self.metrics, self.values, strict=True)}

    def better(self, than: Evaluation | None) -> bool:
        """Whether this is better than another evaluation, or than none, by what counts."""
        return than is None or self.metric.better(self.value, than.value)

    @classmethod
    def of(
        cls, metrics: Iterable[Metric], values: Mapping[str, float], protocol: str = ""
    ) -> Evaluation:
        """From values by name, such as those of an epoch in a history."""
        kinds = tuple(metrics)
        return cls(kinds, tuple(values[m.name] for m in kinds), protocol)

    def __str__(self) -> str:
        pairs = zip(self.metrics, self.values, strict=True)
        return ", ".join(metric.told(value) for metric, value in pairs)


def best_of(evaluations: Iterable[Evaluation]) -> Evaluation | None:
    """The best of several evaluations, the earliest of equals; None of none."""
    best: Evaluation | None = None
    for evaluation in evaluations:
        if evaluation.better(best):
            best = evaluation
    return best
