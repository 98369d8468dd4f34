"""Scoring in several processes: each takes its share of the batches, and all end the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, distributed

from obc.criteria.structure import Part
from obc.errors import ObcError


class Shares:
    """This process among all that score together; alone, everything is its share."""

    def __init__(self) -> None:
        self._group = distributed.is_available() and distributed.is_initialized()
        self.rank = distributed.get_rank() if self._group else 0
        self.count = distributed.get_world_size() if self._group else 1

    def mine(self, number: int) -> bool:
        return number % self.count == self.rank

    def progress(self) -> dict[str, Any]:
        """A bar on the first process's terminal, and nothing anywhere else."""
        console = Console(stderr=True)
        hidden = self.rank != 0 or not console.is_terminal
        return {"console": console, "disable": hidden, "transient": True}

    @contextmanager
    def together(self) -> Iterator[None]:
        """An error in one process ends all of them, instead of leaving the others to wait."""
        error: Exception | None = None
        try:
            yield
        except Exception as raised:
            error = raised
        if self._group:
            failed = torch.tensor([float(error is not None)])
            distributed.all_reduce(failed)
            if error is None and failed.item():
                error = ObcError("scoring failed in another process")
        if error is not None:
            raise error

    def added(
        self, totals: Mapping[str, Tensor], parts: Mapping[str, Sequence[Part]]
    ) -> dict[str, Tensor]:
        """The sums of all processes, bit for bit the same in each."""
        if not self._group:
            return dict(totals)
        rows = torch.tensor([totals[n].shape[0] if n in totals else 0 for n in parts])
        distributed.all_reduce(rows, distributed.ReduceOp.MAX)
        result = {}
        for (name, own), height in zip(parts.items(), rows.tolist(), strict=True):
            empty = torch.zeros(height, own[0].size, dtype=torch.float64)
            total = totals.get(name, empty).contiguous()
            distributed.all_reduce(total)
            distributed.broadcast(total, 0)
            result[name] = total
        return result
