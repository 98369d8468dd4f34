"""Small nets, a criterion whose scores never change, and data for tests of whole runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import obc
from obc.criteria.structure import Part


class Residual(nn.Module):
    """A stem, a block around which it is carried, and a head: coupled sites of several sizes."""

    def __init__(self, width: int = 12, inner: int = 20) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.bn = nn.BatchNorm2d(width)
        self.inner = nn.Conv2d(width, inner, 3, padding=1)
        self.outer = nn.Conv2d(inner, width, 3, padding=1)
        self.down = nn.Conv2d(width, 16, 3, stride=2)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.bn(self.stem(x)))
        x = x + self.outer(functional.relu(self.inner(x)))
        out: Tensor = self.fc(functional.relu(self.down(x)).mean((2, 3)))
        return out


def loss(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def batches(count: int = 6, size: int = 4, channels: int = 1) -> list[Any]:
    return [
        (torch.randn(size, channels, 8, 8), torch.randint(0, 10, (size,))) for _ in range(count)
    ]


class Fixed(obc.Criterion):
    """A channel is worth the sum of its producers' biases, whatever else is left."""

    def measure(self, part: Part, w: Tensor, e: Tensor) -> Tensor:
        return w[:, -1] if part.role == "out" else torch.zeros(part.size, dtype=w.dtype)


def graded(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give every bias another value, so that no two scores are equal."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            p.data = torch.rand(p.shape, generator=generator)
    return model
