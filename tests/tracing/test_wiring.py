"""Which layer alone another reads, behind a gate: one pass over activations then does for both."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import obc


class Gated(nn.Module):
    """A gated linear unit; with `side`, another layer reads what is gated, too."""

    def __init__(self, side: bool) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(5, 8), nn.Linear(5, 8), nn.Linear(8, 3)
        self.side = nn.Linear(8, 3) if side else None

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)
        y: Tensor = self.down(functional.silu(self.gate(x)) * up)
        return y if self.side is None else y + self.side(up)


@pytest.mark.parametrize("side", [False, True])
def test_behind_a_gate(side: bool) -> None:
    torch.manual_seed(0)
    model, x = Gated(side).double(), torch.randn(6, 5).double()
    sites = obc.trace(model, x[:2])
    assert sites.wiring.source == ({} if side else {"down": "up"})

    def loss(net: nn.Module, batch: Tensor) -> Tensor:
        return net(batch).square().mean()  # type: ignore[no-any-return]

    fast = obc.score(model, sites, [x, x[:3]], loss)
    slow = obc.score(model, sites, [x, x[:3]], loss, fast=False)
    assert list(fast) == list(slow) and len(fast) == 1
    torch.testing.assert_close(fast["up"], slow["up"])
