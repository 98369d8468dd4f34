"""Code that decides by a width: whatever width of a site is asked for, `obc.apply` takes it."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import obc
from obc.tracing.decisions import Decisions
from obc.tracing.flow import Flow
from obc.tracing.rules.registry import find
from tests.nets.wrap import Wrap

X = torch.rand(3, 5, dtype=torch.float64)


def divisible(y: Tensor, by: int) -> Tensor:
    if y.shape[1] % by:
        raise ValueError(f"the width must divide by {by}")
    return y


def turned(y: Tensor) -> Tensor:
    half = y.shape[1] // 2
    return torch.cat([-y[:, half:], y[:, :half]], 1)


# Between two layers of this width; the middle one is what decides.
DECISIONS: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "odd": (12, lambda y: y * 2 if y.shape[1] % 2 else y),
    "even": (9, lambda y: y * 2 if y.shape[1] % 2 == 0 else y),
    "other function": (16, lambda y: y.sigmoid() if y.shape[1] % 2 else y.tanh()),
    "must be even": (16, lambda y: divisible(y, 2)),
    "must divide by 3": (12, lambda y: divisible(y, 3)),
    "must divide by 4": (12, lambda y: divisible(y, 4)),
    "must divide by 5": (20, lambda y: divisible(y, 5)),
    "groups that divide": (12, lambda y: nn.functional.group_norm(y, math.gcd(y.shape[1], 4))),
    "halves that turn": (12, turned),
    "uneven halves that turn": (9, turned),
    "eleven that turn": (11, turned),
    "below four": (12, lambda y: y * 2 if y.shape[1] < 4 else y),
    "nine or more": (12, lambda y: y * 2 if y.size(1) >= 9 else y),
    "five or six": (16, lambda y: y * 2 if y.shape[1] in (5, 6) else y),
    "sevens": (16, lambda y: y * 2 if y.shape[-1] % 7 == 0 else y),
    "powers of two": (12, lambda y: y if y.shape[1] & (y.shape[1] - 1) else y * 2),
    "at most four groups": (8, lambda y: y * min(y.shape[1], 4)),
}


def net(width: int, between: Callable[[Tensor], Tensor]) -> Wrap:
    torch.manual_seed(0)
    layers = {
        "stem": nn.Linear(5, width),
        "mid": nn.Linear(width, 8),
        "head": nn.Linear(8, 3),
    }
    return Wrap(
        lambda m, x: m.head(torch.tanh(m.mid(between(torch.tanh(m.stem(x)))))), **layers
    ).double()


@pytest.mark.parametrize("kind", DECISIONS)
def test_every_width_that_a_trace_offers_is_taken(kind: str) -> None:
    model, draw = net(*DECISIONS[kind]), random.Random(1)
    sites = obc.trace(model, X)
    assert "mid" in sites.names  # a decision elsewhere is none of its business
    for site in sites:
        for count in range(1, site.size):
            plan = obc.Plan.from_kept(sites, {site.name: draw.sample(range(site.size), count)})
            small = obc.apply(copy.deepcopy(model), plan)
            assert obc.verify(model, small, plan, X) < 1e-9


def test_a_decision_by_two_widths_together() -> None:
    def run(m: nn.Module, x: Tensor) -> Tensor:
        y = torch.tanh(torch.cat([m.left(x), m.right(x)], 1))
        return m.head(y * 3 if y.shape[1] % 2 else y)

    torch.manual_seed(0)
    layers = {"left": nn.Linear(5, 12), "right": nn.Linear(5, 12), "head": nn.Linear(24, 3)}
    model = Wrap(run, **layers).double()
    sites = obc.trace(model, X)
    assert [(s.name, s.size) for s in sites] == [("left", 12)]  # the two go in pairs
    for count in range(1, 12):
        obc.apply(copy.deepcopy(model), obc.Plan.from_kept(sites, {"left": range(count)}))


def noted(function: Callable[[Tensor], Tensor]) -> list[int]:
    flow = Flow(model := net(12, function), find)
    with Decisions(flow) as decisions:
        flow.through(model, X)
    return list(decisions.numbers)


def test_what_code_compares_widths_with_is_noted() -> None:
    assert noted(lambda y: y if y.shape[1] < 4 else y * 1) == [4]
    assert noted(lambda y: y if y.size(-1) // 2 - 1 == 7 else y * 1) == [7]
    assert noted(lambda y: y if y.shape[1] == 12 else y * 2) == []  # either follows, or fails
    assert noted(lambda y: y if y.shape[0] % 2 else y * 2) == []  # not a width
    assert noted(lambda y: y.view(y.shape[0], -1, 2).flatten(1)) == []


def test_where_nothing_is_decided_every_width_is_free() -> None:
    sites = obc.trace(net(12, lambda y: y), X)
    assert [(s.name, s.size) for s in sites] == [("stem", 12), ("mid", 8)]


def test_what_parity_decides_is_frozen_with_a_reason() -> None:
    frozen = obc.trace(net(*DECISIONS["odd"]), X).frozen
    assert any(f.layer == "stem" and "differs from the masked original" in f.reason for f in frozen)
    frozen = obc.trace(net(*DECISIONS["must divide by 4"]), X).frozen
    assert any(f.layer == "stem" and "must divide by 4" in f.reason for f in frozen)
