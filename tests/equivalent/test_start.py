"""Equivalent pruning that starts where recalibration ends."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import obc
from obc.running.difference import difference
from tests.untouched import untouched


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(24, 3)),
    ).eval()


def test_the_start_is_the_fit() -> None:
    model = net()
    batches = torch.randn(8, 16, 2, 6, 6, generator=torch.Generator().manual_seed(0)).unbind()
    sites = obc.trace(model, batches[0])
    plan = obc.Plan.from_kept(sites, {s.name: range(0, s.size, 2) for s in sites})
    fitted = obc.apply(copy.deepcopy(model), plan)
    naive = copy.deepcopy(fitted)
    obc.recalibrate(fitted, model, batches)
    whole = copy.deepcopy(model)
    factored = obc.apply(model, plan, equivalent=True, init="recalibrated", batches=batches)
    with torch.no_grad():
        outputs = [m(batches[0]) for m in (fitted, factored, naive)]
    assert difference([outputs[0]], [outputs[1]]) < 1e-5
    with pytest.raises(obc.ObcError):
        difference([outputs[0]], [outputs[2]])
    full = factored[3].parametrizations.weight.original
    gone = torch.ones(8, dtype=torch.bool)
    gone[plan.kept["0"]] = False
    assert torch.equal(full[:, gone], whole[3].weight[:, gone]), "what went has changed"
    merged = obc.merge(factored)
    with torch.no_grad():
        assert difference([outputs[0]], [merged(batches[0])]) < 1e-5


def test_batches_of_any_kind() -> None:
    """With `call`, what the batches hold is the caller's affair."""
    model = net()
    x = torch.randn(8, 16, 2, 6, 6, generator=torch.Generator().manual_seed(0)).unbind()
    plan = obc.Plan.from_kept(obc.trace(model, x[0]), {"0": range(0, 8, 2)})
    plain, called = (
        obc.apply(copy.deepcopy(model), plan, equivalent=True, init="recalibrated", **settings)
        for settings in (
            {"batches": x},
            {"batches": [(0, b) for b in x], "call": lambda model, batch: model(batch[1])},
        )
    )
    with torch.no_grad():
        assert torch.equal(plain(x[0]), called(x[0]))
        naive = obc.apply(copy.deepcopy(model), plan)(x[0])
        assert not torch.allclose(called(x[0]), naive, atol=1e-3)


def test_refusals() -> None:
    model = net()
    x = torch.randn(16, 2, 6, 6)
    plan = obc.Plan.from_kept(obc.trace(model, x), {"0": range(4)})
    with untouched(model), pytest.raises(obc.ObcError, match="equivalent=True"):
        obc.apply(model, plan, init="recalibrated", batches=[x])
    with untouched(model), pytest.raises(obc.ObcError, match="no batches"):
        obc.apply(model, plan, equivalent=True, init="recalibrated")
    with pytest.raises(obc.ObcError, match="identity and recalibrated"):
        obc.apply(model, plan, equivalent=True, init="random")
