"""What cannot be traced is refused before anything is touched, and what hides is looked for."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import obc
from tests.nets.wrap import Wrap
from tests.untouched import untouched

X = torch.rand(2, 4)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


# Models that cannot be cut.


def test_a_scripted_model_is_refused_untouched() -> None:
    model = torch.jit.script(mlp())
    shapes = [p.shape for p in model.parameters()]
    with pytest.raises(obc.ObcError, match=r"the model is compiled by TorchScript.*made from"):
        obc.trace(model, X)
    assert [p.shape for p in model.parameters()] == shapes


@pytest.mark.parametrize("verb", ["trace", "plan", "cost", "apply"])
def test_so_is_a_model_with_a_scripted_part(verb: str) -> None:
    plan = obc.Plan.from_kept(obc.trace(mlp(), X), {"0": [1, 2]})
    model = mlp()
    model[2] = torch.jit.script(nn.Linear(8, 2))
    expected = model(X)
    calls = {
        "trace": lambda: obc.trace(model, X),
        "plan": lambda: obc.plan(model, X, target="macs=2x", criterion="l2"),
        "cost": lambda: obc.cost(model, X),
        "apply": lambda: obc.apply(model, plan),
    }
    with pytest.raises(obc.ObcError, match="'2' is compiled by TorchScript"):
        calls[verb]()
    assert torch.equal(model(X), expected)


def test_a_lazy_model_is_to_be_run_first() -> None:
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(2))
    with pytest.raises(
        obc.ObcError, match="'0' is lazy and has no weights yet; run the model once"
    ):
        obc.trace(model, X)
    model(X)
    assert obc.trace(model, X).names == ("0",)


def test_nested_tensors_are_refused_in_a_sentence() -> None:
    model = Wrap(lambda m, x: torch.nested.nested_tensor(list(m.inner(x))), inner=mlp())
    with untouched(model), pytest.raises(obc.ObcError, match="but not under a trace"):
        obc.trace(model, X)


def test_a_wrapped_model_is_to_be_unwrapped() -> None:
    with pytest.raises(obc.ObcError, match=r"in DataParallel; give what is inside: model\.module"):
        obc.trace(nn.DataParallel(mlp()), X)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (None, "a model is a torch.nn.Module, not a NoneType: build the model first"),
        (mlp().state_dict(), "not a OrderedDict: build the model, and load_state_dict into it"),
        (nn.ReLU, "not a type: make one, ReLU"),
    ],
)
def test_what_is_no_model(model: Any, text: str) -> None:
    with pytest.raises(obc.ObcError, match=text):
        obc.trace(model, X)


def test_a_model_that_differentiates_as_it_runs() -> None:
    def slope(m: nn.Module, x: Tensor) -> Tensor:
        z = x.clone().requires_grad_()
        return torch.autograd.grad(m.inner(z).sum(), z)[0]

    model = Wrap(slope, inner=mlp())
    with untouched(model), pytest.raises(obc.ObcError, match=r"put them.*torch\.enable_grad\(\)"):
        obc.trace(model, X)


def test_a_call_that_its_rule_does_not_cover_freezes_what_reached_it() -> None:
    """Under vmap, operators see tensors of other shapes than the labels have."""
    model = Wrap(lambda m, x: torch.vmap(lambda row: m.inner(row))(x), inner=mlp())
    with untouched(model):
        sites = obc.trace(model, X)
    assert not len(sites)
    assert any("does not cover this call" in held.reason for held in sites.frozen)


# What a model returns.


class Plain:
    def __init__(self, value: Any) -> None:
        self.value = value


def written_on(tensor: Tensor, value: Tensor) -> Tensor:
    tensor.features, tensor.itself = value, tensor  # type: ignore[attr-defined]
    return tensor


class Hidden(Exception):
    """Keeps its arguments where no dictionary has them, as what is written in C does."""


class Named(NamedTuple):
    value: Any


RETURNS = {
    "object": Plain,
    "nested": lambda y: [Plain({"a": (y,)})],
    "namespace": lambda y: SimpleNamespace(y=y),
    "namedtuple": Named,
    "set": lambda y: {y},
    "written on a tensor": lambda y: written_on(y.sum(), y),
    "itself": lambda y: y,
}


@pytest.mark.parametrize("kind", RETURNS)
def test_channels_in_what_a_model_returns_stay(kind: str) -> None:
    inner = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
    model = Wrap(lambda m, x: RETURNS[kind](m.inner(x)), inner=inner)
    sites = obc.trace(model, X)
    assert [(s.name, s.size) for s in sites] == [("inner.0", 8)]
    assert [(f.layer, f.reason) for f in sites.frozen] == [("inner.2", "model output")]


@pytest.mark.parametrize(
    ("back", "kind"),
    [
        (lambda y: iter([y]), "list_iterator"),
        (lambda y: lambda: y, "function"),
        (lambda y: Hidden(y), "Hidden"),
        (lambda y: partial(Plain, y), "partial"),
    ],
)
def test_what_cannot_be_looked_into_freezes_everything(back: Any, kind: str) -> None:
    model = Wrap(lambda m, x: back(m.inner(x)), inner=mlp())
    with untouched(model):
        sites = obc.trace(model, X)
    assert not len(sites)
    assert any(f"the model returns a {kind}" in f.reason for f in sites.frozen)


def test_an_object_that_holds_itself() -> None:
    def run(m: nn.Module, x: Tensor) -> Plain:
        loop = Plain(m.inner(x))
        loop.itself = loop  # type: ignore[attr-defined]
        return loop

    assert [s.name for s in obc.trace(Wrap(run, inner=mlp()), X)] == ["inner.0"]
