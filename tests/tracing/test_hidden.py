"""Outputs that do not depend on what is cut prove nothing: then what happens inside is compared."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import obc
from tests.nets.wrap import Wrap

X = torch.rand(3, 5)


def by_its_width(y: Tensor) -> Tensor:
    """A fault that a cut must not get away with."""
    return y * y.shape[1]


def plain(y: Tensor) -> Tensor:
    return y


def branch(between: Callable[[Tensor], Tensor], gain: float) -> nn.Module:
    """A residual branch behind a gain, which is zero before training in many networks."""
    torch.manual_seed(0)
    return Wrap(
        lambda m, x: m.last(x + m.gain * m.back(between(torch.tanh(m.out(x))))),
        out=nn.Linear(5, 12),
        back=nn.Linear(12, 5),
        gain=nn.Parameter(torch.full((5,), gain)),
        last=nn.Linear(5, 2),
    )


def chain(between: Callable[[Tensor], Tensor], end: Callable[[Tensor], Tensor]) -> nn.Module:
    torch.manual_seed(0)
    return Wrap(
        lambda m, x: end(m.back(between(torch.tanh(m.out(x))))),
        out=nn.Linear(5, 12),
        back=nn.Linear(12, 4),
    )


ENDS: dict[str, Callable[[Tensor], Tensor]] = {
    "times zero": lambda y: y * 0,
    "rounded away": lambda y: (y * 1e-3).round(),
    "saturated": lambda y: (y.abs() + 99).tanh(),
}


def plan_of(model: nn.Module) -> obc.Plan:
    """Of a model with the same layers and no fault."""
    sites = obc.trace(model, X)
    assert "out" in sites.names
    return obc.Plan.from_kept(sites, {"out": [1, 4, 5, 9]})


@pytest.mark.parametrize("kind", ENDS)
def test_outputs_that_never_change(kind: str) -> None:
    right, wrong = chain(plain, ENDS[kind]), chain(by_its_width, ENDS[kind])
    plan = plan_of(right)
    obc.apply(copy.deepcopy(right), plan)
    assert "out" not in obc.trace(wrong, X).names
    with pytest.raises(obc.ObcError, match="differs from the masked original"):
        obc.apply(wrong, plan)


def test_a_branch_behind_zeros() -> None:
    plan = plan_of(branch(plain, 0.0))
    obc.apply(branch(plain, 0.0), plan)
    for gain in (0.0, 0.5):  # with the gain of a trained network it shows anyway
        with pytest.raises(obc.ObcError, match="differs from the masked original"):
            obc.apply(branch(by_its_width, gain), plan)
