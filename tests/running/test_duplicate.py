"""Models that keep tensors made from their parameters are copied, planned and pruned."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import obc
from obc.costs.candidates import Candidates
from obc.running.modules import duplicate
from obc.tracing.tracer import Tracing
from tests.untouched import untouched

X = torch.rand(2, 4)


def masked(layer: nn.Linear) -> nn.Module:
    return prune.l1_unstructured(layer, "weight", 0.3)


def normed(layer: nn.Linear) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(layer)


@pytest.mark.parametrize("change", [masked, normed, nn.utils.spectral_norm])
def test_weights_that_hooks_make(change: Callable[[nn.Linear], nn.Module]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        change(nn.Linear(4, 10)), nn.ReLU(), nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 2)
    ).eval()
    expected = model(X)
    other = duplicate(model)
    assert torch.equal(other(X), expected)
    with torch.no_grad():
        next(other.parameters()).zero_()
    assert torch.equal(model(X), expected)

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        y: Tensor = m(x).square().mean()
        return y

    batches = [torch.rand(3, 4) for _ in range(2)]
    plan = obc.plan(model, X, batches, loss, target="channels=50%", step=0.1)
    assert any(len(part.kept) < part.size for part in plan.sites.values())
    pruned = obc.prune(model, X, batches, loss, target="channels=50%", step=0.1)
    assert pruned(X).shape == (2, 2) and torch.equal(model(X), expected)


@pytest.mark.parametrize("change", [masked, normed])
def test_what_hooks_make_goes_with_what_it_is_made_from(
    change: Callable[[nn.Linear], nn.Module],
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), change(nn.Linear(6, 8)), nn.ReLU())
    model.append(nn.Linear(8, 2))
    sites = obc.trace(model, X)
    roles = {(m.name, m.role) for m in sites["2"].members}
    assert roles & {("2.weight_orig", "out"), ("2.weight_v", "out")}
    kept = {name: range(3) for name in sites.names}
    obc.apply(model, obc.Plan.from_kept(sites, kept), example=X)
    read = 3 if change is masked else 6  # a norm over what a filter reads holds all of it
    layer: Any = model[2]
    assert (layer.out_features, layer.in_features) == (3, read) == tuple(layer.weight.shape)


@pytest.mark.parametrize("change", [masked, normed])
def test_it_is_timed_and_given_factors(change: Callable[[nn.Linear], nn.Module]) -> None:
    """With a weight that the last run left beside its parameters, gradients and all."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), change(nn.Linear(6, 8)), nn.Linear(8, 2))
    plan = obc.Plan.from_kept(obc.trace(model, X), {"2": range(3)})
    model(X)
    assert Candidates(Tracing(model, X), "torch").whole > 0
    model(X)
    assert obc.apply(model, plan, example=X, equivalent=True)(X).shape == (2, 2)


def test_what_is_shared_is_not_copied() -> None:
    model = nn.Linear(2, 2)
    with untouched(model):
        other = duplicate(model, [model.weight])
    assert other.weight is model.weight and other.bias is not model.bias
