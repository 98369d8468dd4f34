"""Which rows a regression sees, and which are held out to judge it: the same for the same seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from obc.errors import ObcError

HELD = 8  # one part in so many is held out
_FEW = 32  # with fewer samples than this, a part of each is held out instead of whole ones
ROWS = 16384


@dataclass(frozen=True)
class Portion:
    """One batch among all: its number, the samples in it, those before it, and all there are."""

    number: int
    samples: int
    before: int
    total: int

    def draw(self, positions: int, width: int, seed: int, rows: int = ROWS) -> Tensor:
        """This batch's share of max(rows, 8 width) random positions, in order."""
        share = -(-max(rows, 8 * width) * self.samples // self.total)
        if share >= positions:
            return torch.arange(positions)
        generator = torch.Generator().manual_seed(seed * 1_000_003 + self.number)
        return torch.randperm(positions, generator=generator)[:share].sort().values

    @property
    def holds_samples(self) -> bool:
        """Whether whole samples are held out, since there are enough of them."""
        return self.total >= _FEW

    @property
    def holds_any(self) -> bool:
        """Whether any sample of this batch is held out."""
        return bool(self.held(torch.arange(self.samples), self.samples).any())

    @property
    def is_judged(self) -> bool:
        """Whether anything that a network puts out for this batch is held out."""
        return self.holds_any or not self.holds_samples

    def held(self, index: Tensor, positions: int) -> Tensor:
        """Whether each of these positions is held out."""
        if self.holds_samples:
            return (self.before + index * self.samples // positions) % HELD == HELD - 1
        if positions >= HELD * self.samples:
            return index * self.samples * HELD // positions % HELD == HELD - 1
        return (self.before + index) % HELD == HELD - 1


def portions(batches: Sequence[Any]) -> list[Portion]:
    """How batches share the samples."""
    sizes = [samples_in(batch) for batch in batches]
    total = sum(sizes)
    return [Portion(i, size, sum(sizes[:i]), total) for i, size in enumerate(sizes)]


def enough_to_try(shares: Sequence[Portion]) -> int:
    """How many batches hold an eighth of the samples; 0 if so few cannot show anything."""
    for portion in shares:
        if portion.before >= max(2 * _FEW, portion.total / 8):
            return portion.number
    return 0


def samples_in(batch: Any) -> int:
    """The size of a batch: the first dimension of its first tensor."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    tensors = [t for t in tree_leaves(batch) if isinstance(t, Tensor) and t.ndim]
    if not tensors or not len(tensors[0]):
        raise ObcError("a batch holds no tensor with samples in it; recalibration cannot use it")
    return len(tensors[0])
