"""What is measured of a model for tables and reports: accuracy, cost, size and time."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from torch import nn

from obc.costs.counting import cost
from obc.data import Images
from obc.equivalent.attach import is_equivalent
from obc.equivalent.merge import merge
from obc.files.folder import TENSORS
from obc.reporting.record import Latency
from obc.running.timing import race_models
from obc.tuning.evaluate import Score, evaluate


def milliseconds(models: Sequence[nn.Module], example: Any) -> list[float]:
    """Of each model's fastest run of many, taking turns."""
    return [1e3 * min(own) for own in race_models(models, example, turns=30, seconds=0.3)]


@dataclass(frozen=True)
class Measured:
    """One model; `size` in bytes where it is saved, time for the fastest run of the example."""

    name: str
    score: Score
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
            accuracy=self.score.top1,
        )


def measured(
    name: str, model: nn.Module, data: Images, example: Any, folder: Path | None = None
) -> Measured:
    """Evaluate and time a model, merged if it holds C and D; `folder` is where it was saved."""
    if is_equivalent(model):
        model = merge(copy.deepcopy(model))
    costs = cost(model, example)
    return Measured(
        name,
        evaluate(model, data),
        costs.macs,
        costs.params,
        milliseconds([model], example)[0],
        (folder / TENSORS).stat().st_size if folder is not None else None,
    )


def plain(found: Measured) -> dict[str, Any]:
    """The numbers for JSON."""
    numbers = {
        "top1": found.score.top1,
        "top5": found.score.top5,
        "loss": found.score.loss,
        "macs": found.macs,
        "params": found.params,
        "milliseconds": found.milliseconds,
    }
    return numbers if found.size is None else {**numbers, "bytes": found.size}


def models_table(title: str, found: Sequence[Measured]) -> Table:
    """One model a row; costs beside those of the first."""
    table = Table(title=title, title_justify="left")
    table.add_column("model", overflow="fold")
    for column in ("top-1 %", "loss", "MACs", "parameters", "file", "one image"):
        table.add_column(column, justify="right")
    for m in found:
        table.add_row(
            m.name,
            f"{m.score.top1:.2f}",
            f"{m.score.loss:.3f}",
            _beside(m.macs, found[0].macs),
            _beside(m.params, found[0].params),
            "–" if m.size is None else f"{m.size / 1e6:.3f} MB",
            f"{m.milliseconds:.2f} ms",
        )
    return table


def _beside(value: int, first: int) -> str:
    """
    >>> _beside(500_000, 1_000_000), _beside(1_000_000, 1_000_000)
    ('0.500 M (2.00x less)', '1.000 M')
    """
    text = f"{value / 1e9:.3f} G" if value >= 1e9 else f"{value / 1e6:.3f} M"
    return text if value == first else f"{text} ({first / max(value, 1):.2f}x less)"
