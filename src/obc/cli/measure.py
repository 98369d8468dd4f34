"""What is measured of a model for tables and reports: accuracy, cost, size and time."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import nn

from obc.data import Images
from obc.equivalent.attach import is_equivalent
from obc.equivalent.merge import merge
from obc.files.folder import TENSORS
from obc.planning.budget import cost
from obc.report.record import Latency
from obc.trace.running import arguments
from obc.tuning.evaluate import Score, evaluate, evaluating

_RUNS, _AT_LEAST = 30, 300.0  # of timing, and milliseconds of it


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
        race([model], example)[0],
        (folder / TENSORS).stat().st_size if folder is not None else None,
    )


@torch.no_grad()
def race(models: Sequence[nn.Module], example: Any) -> list[float]:
    """Milliseconds of each model's fastest run of many, taking turns.

    What else the machine does can only slow a run down.
    """
    args, kwargs = arguments(example)
    times: list[list[float]] = [[] for _ in models]
    with ExitStack() as modes:
        for model in models:
            modes.enter_context(evaluating(model))
        while len(times[0]) < _RUNS or sum(times[0]) < _AT_LEAST:
            for model, own in zip(models, times, strict=True):
                start = time.perf_counter()
                model(*args, **kwargs)
                own.append(1e3 * (time.perf_counter() - start))
    return [min(own) for own in times]


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
