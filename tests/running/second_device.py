"""A trace, scores and a plan on a second device, compared with those on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import obc
from tests.elsewhere import DEVICE, elsewhere


def net() -> nn.Module:
    torch.manual_seed(0)
    first = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.ReLU()]
    return nn.Sequential(*first, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)).eval()


def loss(model: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = model(x).square().mean()
    return y


def through(model: nn.Module, example: Tensor, batches: list[Tensor]) -> tuple[Any, Any]:
    """Scores, and what a plan keeps."""
    scores = obc.score(model, obc.trace(model, example), batches, loss)
    return scores, obc.plan(model, example, batches, loss, target="channels=50%", step=0.1).kept


def main() -> None:
    example, batches = torch.rand(2, 3, 8, 8), [torch.rand(4, 3, 8, 8) for _ in range(3)]
    scores, kept = through(net(), example, batches)
    with elsewhere():
        with pytest.raises(RuntimeError, match="and on the CPU"):
            torch.ones(2, device=DEVICE) + torch.ones(2)
        there = through(net().to(DEVICE), example.to(DEVICE), [b.to(DEVICE) for b in batches])
        assert kept == there[1]
        assert all(torch.allclose(there[0][n].cpu(), values) for n, values in scores.items())
    print("the same")


if __name__ == "__main__":
    main()
