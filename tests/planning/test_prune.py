"""`obc.prune`: one call from a model to its pruned, recalibrated copy."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import obc
from tests.untouched import untouched


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 4))


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


BATCHES = torch.randn(8, 32, 8, generator=torch.Generator().manual_seed(0)).unbind()


def test_the_copy_is_recalibrated() -> None:
    model = net()
    with untouched(model):
        small, plan, account = obc.prune(
            model, BATCHES[0][:1], BATCHES, loss, target="macs=2x", step=0.1, details=True
        )
        naive = obc.prune(
            model, BATCHES[0][:1], BATCHES, loss, target="macs=2x", step=0.1, samples=0
        )
    assert account is not None and account.kept and account.samples == 256
    assert plan.settings["rank"] == "score/cost" and plan.settings["criterion.block"] == "group"
    new = torch.randn(512, 8)
    gaps = [(m(new) - model(new)).square().mean() for m in (small, naive)]
    assert gaps[0] < 0.8 * gaps[1]
    assert small[0].out_features == naive[0].out_features == len(plan.kept["0"])


def test_settings_and_refusals() -> None:
    model = net()
    _, plan, _ = obc.prune(
        model, BATCHES[0][:1], BATCHES, target="macs=2x", criterion="l2", step=0.1, details=True
    )
    assert plan.settings["criterion"] == "l2" and plan.settings["rank"] == "score"
    with untouched(model), pytest.raises(obc.ObcError, match="not an iterator"):
        obc.prune(model, BATCHES[0][:1], iter(BATCHES), loss, target="macs=2x")
    with pytest.raises(obc.ObcError, match="one model"):
        obc.prune(model, BATCHES[0][:1], BATCHES, loss, target=["macs=2x"])
