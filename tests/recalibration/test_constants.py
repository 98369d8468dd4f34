"""Weights that a model holds fixed, such as the bins of a distribution of distances (DFL)."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import obc


def expecting(bins: int = 6) -> nn.Module:
    """A distribution over 0, 1, …, and its mean, which is a linear map of constant weights."""
    torch.manual_seed(0)
    hidden, logits = nn.Linear(4, 16), nn.Linear(16, bins)
    mean = nn.Linear(bins, 1, bias=False).requires_grad_(False)
    mean.weight.copy_(torch.arange(bins).view(1, -1))
    with torch.no_grad():  # far from linear
        hidden.weight.mul_(3)
        logits.weight.mul_(3)
    return nn.Sequential(hidden, nn.Tanh(), logits, nn.Softmax(-1), mean).double()


@pytest.mark.parametrize("frozen", ["the mean", "nothing", "all"])
def test_constants_stay_what_they_are(frozen: str) -> None:
    net = expecting()
    if frozen != "the mean":
        net.requires_grad_(frozen == "nothing")
    example = torch.zeros(1, 4).double()
    plan = obc.Plan.from_kept(obc.trace(net, example), {"0": range(6)})
    small = obc.apply(copy.deepcopy(net), plan)
    x = torch.randn(512, 4, generator=torch.Generator().manual_seed(1)).double()
    account = obc.recalibrate(small, net, x.split(64))
    fits = {fit.name: fit for fit in account.fits}
    assert fits["2.weight"].kept and account.after < account.before
    same = torch.equal(small[4].weight, net[4].weight)
    assert same == (frozen == "the mean") == (not fits["4.weight"].kept)
    assert ("constant" in fits["4.weight"].note) == same


def test_what_is_frozen_and_cut_takes_over() -> None:
    """It is not what it was anyway."""
    net = expecting()
    net[2].requires_grad_(False)
    plan = obc.Plan.from_kept(obc.trace(net, torch.zeros(1, 4).double()), {"0": range(6)})
    small = obc.apply(copy.deepcopy(net), plan)
    before = small[2].weight.clone()
    x = torch.randn(512, 4, generator=torch.Generator().manual_seed(1)).double()
    obc.recalibrate(small, net, x.split(64))
    assert not torch.equal(small[2].weight, before) and not small[2].weight.requires_grad
