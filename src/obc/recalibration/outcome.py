"""How far a pruned network's outputs are from the original's on held-out inputs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from obc.recalibration.rows import Portion
from obc.running.forward import outputs
from obc.running.processes import Group

_ROWS = 2048  # of one output of one batch
_NUMBERS = 1 << 22  # in these rows: a vocabulary is wide


def held_batch(batch: Any, portion: Portion) -> Any:
    """The held-out samples of a batch alone: what runs over the samples, by its length."""
    held = portion.held(torch.arange(portion.samples), portion.samples)

    def part(x: Any) -> Any:
        along = isinstance(x, Tensor) and x.ndim > 0 and len(x) == portion.samples
        return x[held.to(x.device)] if along else x

    return tree_map(part, batch)


def held_outputs(result: Any, portion: Portion, alone: bool = False) -> list[Tensor]:
    """The held-out rows of what a network returned, each [rows, width].

    `alone` tells that it ran on nothing else, as `held_batch` has it.
    """
    rows = []
    for tensor in outputs(result):
        if not tensor.is_floating_point() or not tensor.ndim or not tensor.numel():
            continue
        positions = prod(tensor.shape[:-1]) if tensor.ndim > 1 else len(tensor)
        index = torch.arange(positions)
        index = index if alone else index[portion.held(index, positions)]
        most = max(1, min(_ROWS, _NUMBERS * positions // tensor.numel()))
        index = index[:: len(index) // most + 1].to(tensor.device)
        rows.append(tensor.reshape(positions, -1)[index])
    return rows


class Outcome:
    """Σ|pruned − original|² and the original's moments, over batches."""

    def __init__(self) -> None:
        self._sums = torch.zeros(4, dtype=torch.float64)

    def add(self, pruned: Sequence[Tensor], original: Sequence[Tensor]) -> None:
        """Compare the outputs for one batch; those of another shape cannot be."""
        for mine, whole in zip(pruned, original, strict=False):
            if mine.shape != whole.shape:
                continue
            a, b = mine.double().cpu(), whole.double().cpu()
            self._sums += torch.stack(
                [(a - b).square().sum(), b.square().sum(), b.sum(), torch.tensor(b.numel() * 1.0)]
            )

    def error(self, group: Group) -> float:
        """The squared error as a share of the variance of the original's outputs."""
        wrong, square, total, count = group.summed(self._sums).tolist()
        variance = square - total * total / max(count, 1.0)
        return wrong / variance if variance > 0 else 0.0
