"""What is measured of a model for tables and reports: metrics, cost, size and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table
from torch import nn

from obc.costs.counting import cost
from obc.equivalent.attach import is_equivalent
from obc.equivalent.merge import merge
from obc.files.shards import size_of
from obc.reporting.record import Latency, finite
from obc.running.modules import duplicate
from obc.running.timing import race_models
from obc.tasks.evaluation import Evaluation, Metric
from obc.tasks.task import Task

_LONG = 0.1  # seconds


def milliseconds(models: Sequence[nn.Module], example: Any) -> list[float]:
    """Of each model's fastest run of many, taking turns; of few where one takes long."""
    first = race_models(models, example, turns=1, seconds=0)
    if max(min(own) for own in first) > _LONG:
        return [1e3 * min(own) for own in race_models(models, example, turns=3, seconds=0)]
    return [1e3 * min(own) for own in race_models(models, example, turns=30, seconds=0.3)]


@dataclass(frozen=True)
class Measured:
    """One model; `size` in bytes where it is saved, time for the fastest run of the example."""

    name: str
    evaluation: Evaluation
    macs: int
    params: int
    milliseconds: float
    size: int | None = None

    @property
    def row(self) -> Latency:
        """As the record of a run keeps it."""
        return Latency(
            name=self.name,
            macs=self.macs,
            params=self.params,
            size=self.size,
            milliseconds=self.milliseconds,
            quality=finite(self.evaluation.value),
        )


def measured(
    name: str, model: nn.Module, task: Task, example: Any, folder: Path | None = None
) -> Measured:
    """Evaluate and time a model, merged if it holds C and D; `folder` is where it was saved."""
    if is_equivalent(model):
        model = merge(duplicate(model))
    costs = cost(model, example)
    return Measured(
        name,
        task.evaluate(model),
        costs.macs,
        costs.params,
        milliseconds([model], example)[0],
        size_of(folder) if folder is not None else None,
    )


def plain(row: Measured) -> dict[str, Any]:
    """The numbers for JSON."""
    numbers = {
        **{name: finite(value) for name, value in row.evaluation.named().items()},
        "macs": row.macs,
        "params": row.params,
        "milliseconds": row.milliseconds,
    }
    return numbers if row.size is None else {**numbers, "bytes": row.size}


def models_table(title: str, rows: Sequence[Measured]) -> Table:
    """One model a row; costs beside those of the first."""
    table = Table(title=escape(title), title_justify="left")  # params[blocks] is no style
    table.add_column("model", overflow="fold")
    shown = _shown(rows[0].evaluation)
    heads = [metric.title for metric in shown]
    for column in (*heads, "MACs", "parameters", "file", "one example"):
        table.add_column(column, justify="right")
    for m in rows:
        table.add_row(
            m.name,
            *(f"{m.evaluation[metric.name]:.{metric.digits}f}" for metric in shown),
            _beside(m.macs, rows[0].macs),
            _beside(m.params, rows[0].params),
            "–" if m.size is None else f"{m.size / 1e6:.3f} MB",
            f"{m.milliseconds:.2f} ms",
        )
    return table


def _shown(evaluation: Evaluation) -> list[Metric]:
    """The metric that counts, and the loss beside it."""
    return [m for n, m in enumerate(evaluation.metrics) if n == 0 or m.name == "loss"]


def _beside(value: int, first: int) -> str:
    """
    >>> _beside(500_000, 1_000_000), _beside(1_000_000, 1_000_000)
    ('0.500 M (2.00x less)', '1.000 M')
    """
    text = f"{value / 1e9:.3f} G" if value >= 1e9 else f"{value / 1e6:.3f} M"
    return text if value == first else f"{text} ({first / max(value, 1):.2f}x less)"
