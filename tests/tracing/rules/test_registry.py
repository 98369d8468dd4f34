"""A user's operator is declared once, and everything that asks about operators knows it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import obc
from obc.tracing.rules import registry
from obc.tracing.rules.products import Operands
from tests.nets.wrap import Wrap

X = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))


@torch.library.custom_op("obctest::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@torch.library.custom_op("obctest::mean_off", mutates_args=())
def mean_off(x: Tensor) -> Tensor:
    return x - x.mean(1, keepdim=True)


@torch.library.custom_op("obctest::matmul", mutates_args=())
def matmul(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.t()


@pytest.fixture(autouse=True)
def rules_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_OPERATORS", dict(registry._OPERATORS))
    yield
    registry.find.cache_clear()


def net(op: Any) -> nn.Module:
    torch.manual_seed(0)
    return Wrap(lambda m, x: m.head(op(m.stem(x))), stem=nn.Linear(5, 8), head=nn.Linear(8, 3))


def same_channels(call: Any) -> Any:
    return call.labels("x")


def test_a_rule_frees_the_channels_that_an_unknown_operator_froze() -> None:
    sites = obc.trace(net(twice), X)
    assert not len(sites) and "no rule for obctest::twice" in str(sites.frozen[0])
    obc.rule("obctest::twice")(same_channels)
    assert [(s.name, s.size) for s in obc.trace(net(twice), X)] == [("stem", 8)]


def test_what_scales_is_transparent_to_the_wiring() -> None:
    obc.rule("obctest::twice")(same_channels)
    assert obc.trace(net(twice), X).wiring.source == {}
    obc.rule("obctest::twice", scales=True)(same_channels)
    assert obc.trace(net(twice), X).wiring.source == {"head": "stem"}


@pytest.mark.parametrize("mixes", [True, False])
def test_what_mixes_is_masked_on_the_kept_channels(mixes: bool) -> None:
    """Without the word the masked original would take the mean over removed channels too."""
    obc.rule("obctest::mean_off", mixes=mixes)(same_channels)
    model = net(mean_off)
    sites = obc.trace(model, X)
    if mixes:
        plan = obc.Plan.from_kept(sites, {"stem": [0, 2, 3]})
        assert obc.apply(copy.deepcopy(model), plan)(X).shape == (2, 3)
    else:
        assert not len(sites) and "differs from the masked original" in str(sites.frozen[0])


def test_declared_macs_are_counted() -> None:
    def labels(call: Any) -> Any:
        return ()

    def macs(operands: Operands) -> Any:
        return [[*operands.dims("x"), operands.dims("weight")[0]]]

    model = Wrap(lambda m, x: matmul(x, m.stem.weight), stem=nn.Linear(5, 8))
    assert obc.cost(model, X).macs == 0
    obc.rule("obctest::matmul", macs=macs)(labels)
    assert obc.cost(model, X).macs == 2 * 5 * 8


def test_a_decorator_without_names_is_refused() -> None:
    with pytest.raises(obc.ObcError, match="schema names"):
        obc.rule(same_channels)  # type: ignore[arg-type]
    with pytest.raises(obc.ObcError, match="schema names"):
        obc.rule()
