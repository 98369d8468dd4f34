"""Chance, as the baseline that every other criterion has to beat."""

from __future__ import annotations

import torch
from torch import Tensor

from obc.criteria.criterion import Criterion, register
from obc.criteria.structure import Part


@register("random")
class Random(Criterion):
    """A uniform draw for each channel, the same for the same seed on every machine."""

    def __init__(self, seed: int = 0) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def site(self, parts: list[tuple[Part, Tensor, Tensor]]) -> Tensor:
        """One draw a channel: the sum of several would no longer be uniform."""
        size = parts[0][0].size
        return torch.rand(1, size, generator=self._generator, dtype=torch.float64)
