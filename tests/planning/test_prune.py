"""`obc.prune`: one call from a model to its pruned, recalibrated copy."""

from __future__ import annotations

import copy

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


def test_redundancy_counts_on_what_takes_over() -> None:
    model, example = net(), BATCHES[0][:1]
    with torch.no_grad():  # twelve channels that say what another one says
        model[0].weight[36:], model[0].bias[36:] = model[0].weight[:12], model[0].bias[:12]
    settings = {"target": "macs=75%", "details": True}
    redundancy = obc.prune(model, example, BATCHES, loss, criterion="redundancy", **settings)
    jacobian = obc.prune(model, example, BATCHES, loss, step=0.1, **settings)
    assert redundancy.plan.settings["rank"] == "score/cost"
    new = torch.randn(512, 8)
    gaps = [(m.model(new) - model(new)).square().mean() for m in (redundancy, jacobian)]
    assert gaps[0] < 1e-3 * model(new).var() and gaps[1] > 10 * gaps[0]


def test_the_paper_is_one_argument_away() -> None:
    """Algorithm 1 with its own defaults, then the cut, and nothing else."""
    model, example = net(), BATCHES[0][:1]
    small, plan, account = obc.prune(
        model, example, BATCHES, loss, target="macs=2x", paper=True, details=True
    )
    printed = obc.plan(model, example, BATCHES, loss, target="macs=2x")
    assert account is None and plan.kept == printed.kept
    cut = obc.apply(copy.deepcopy(model), printed)
    assert torch.equal(small(BATCHES[1]), cut(BATCHES[1]))
    paper = {"rows": 50, "step": 0.0025, "aggregate": "sum", "normalize": "none"}
    assert plan.settings.items() >= {**paper, "scope": "global", "rank": "score"}.items()
    *_, default = obc.prune(model, example, BATCHES, loss, target="macs=2x", details=True)
    assert default is not None


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
