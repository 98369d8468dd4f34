"""What runs in train mode only is cut along; what no run reaches holds nothing but its own kind."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import obc
from tests.nets.wrap import Wrap
from tests.untouched import untouched

X = torch.rand(1, 3, 8, 8)
Head = Callable[["Auxiliary", Tensor, Tensor], Tensor]
HEADS: dict[str, tuple[Head, nn.Module]] = {
    "plain": (lambda m, a, b: m.extra(b.mean((2, 3))), nn.Linear(10, 5)),
    "flattened": (lambda m, a, b: m.extra(b.flatten(1)), nn.Linear(10 * 36, 5)),
    "joined": (lambda m, a, b: m.extra(torch.cat([a, b], 1)), nn.Conv2d(18, 5, 1)),
    "chunked": (lambda m, a, b: m.extra(b.chunk(2, 1)[0]), nn.Conv2d(5, 5, 1)),
}


class Auxiliary(nn.Module):
    """A second head in train mode, as in GoogLeNet, NASNet and PSPNet."""

    def __init__(self, head: Head, extra: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.norm, self.body = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 10, 1)
        self.drop, self.last = nn.Dropout(), nn.Linear(10, 4)
        self.head, self.extra = head, copy.deepcopy(extra)

    def forward(self, x: Tensor) -> Any:
        a = F.relu(self.norm(self.stem(x)))
        b = F.relu(self.body(a))
        y = self.last(self.drop(b.mean((2, 3))))
        return (y, self.head(self, a, b)) if self.training else y


@pytest.mark.parametrize("name", HEADS)
def test_a_head_of_train_mode_is_cut_along(name: str) -> None:
    model = Auxiliary(*HEADS[name])
    with untouched(model):
        sites = obc.trace(model, X)
    assert {"stem", "body"} <= set(sites.names) and not sites.untouched
    readers = {m.layer for s in sites for m in s.members if m.role == "in"}
    assert "extra" in readers
    kept = {s.name: range(0, s.size, 2) for s in sites}
    obc.apply(model, obc.Plan.from_kept(sites, kept), example=X)
    assert model.train()(X.repeat(2, 1, 1, 1))[1].shape[:2] == (2, 5)


@pytest.mark.parametrize("criterion", ["jacobian", "taylor", "hessian", "l2"])
def test_such_a_head_is_scored_and_planned(criterion: str) -> None:
    model = Auxiliary(*HEADS["joined"]).eval()
    batches = [torch.rand(4, 3, 8, 8) for _ in range(2)]

    def loss(m: Any, x: Tensor) -> Tensor:
        return m(x).square().mean()

    plan = obc.plan(model, X, batches, loss, target="channels=50%", criterion=criterion, step=0.1)
    obc.apply(model, plan, example=X)


class Masked(nn.Module):
    """A token that stands in for masked inputs, if there are any."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.last = nn.Linear(4, 8), nn.Linear(8, 3)
        self.token = nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y = self.stem(x)
        return self.last(F.gelu(y if mask is None else torch.where(mask, self.token, y)))


def test_a_token_that_is_not_used_holds_nothing() -> None:
    sites = obc.trace(Masked(), torch.rand(2, 4))
    assert sites.names == ("stem",) and sites.untouched == ("token",)


def test_a_train_mode_that_fails_says_nothing() -> None:
    class Wants(Masked):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            if self.training:
                raise ValueError("targets should not be none when in training mode")
            return super().forward(x, mask)

    assert obc.trace(Wants(), torch.rand(2, 4)).names == ("stem",)


class Deep(nn.Module):
    """A block holds a layer that this example does not reach, as DPT's first fusion layer does."""

    def __init__(self, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.stem, self.between, self.last = nn.Linear(4, 8), nn.Linear(8, 6), nn.Linear(6, 3)
        self.block = Wrap(call, used=nn.Linear(6, 6), idle=nn.Linear(6, 8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.between(F.relu(self.stem(x)))
        return self.last(F.relu(self.block(y)))


CALLS: dict[str, Callable[..., Tensor]] = {
    "by name": lambda m, x: m.used(x) if len(x) < 99 else m.idle(x),
    "by any name": lambda m, x: getattr(m, ("used", "idle")[len(x) > 99])(x),
}


@pytest.mark.parametrize("kind", CALLS)
def test_a_layer_that_other_inputs_may_reach_holds_what_its_block_could_give_it(kind: str) -> None:
    sites = obc.trace(Deep(CALLS[kind]), torch.rand(2, 4))
    assert sites.names == ("stem",)  # as wide as the idle layer's output, but elsewhere
    assert {f.layer for f in sites.frozen} >= {"between", "block.used"}
    assert sites.untouched == ("block.idle.weight", "block.idle.bias")


def test_a_layer_that_no_code_speaks_of_is_left_alone() -> None:
    sites = obc.trace(Deep(lambda m, x: m.used(x)), torch.rand(2, 4))
    assert sites.names == ("stem", "between", "block.used")
    assert sites.untouched == ("block.idle.weight", "block.idle.bias")


def test_a_train_mode_that_fails_behind_its_head() -> None:
    """PSPNet's own code: the head runs, and then the loss wants targets."""

    class Wants(Auxiliary):
        def forward(self, x: Tensor, y: Any = None) -> Any:
            out = super().forward(x)
            return F.cross_entropy(out[1], y) if self.training else out

    model = Wants(*HEADS["plain"])
    sites = obc.trace(model, X)
    assert {"stem", "body"} <= set(sites.names) and not sites.untouched
    kept = {s.name: range(0, s.size, 2) for s in sites}
    obc.apply(model, obc.Plan.from_kept(sites, kept), example=X)
    assert model.train()(X.repeat(2, 1, 1, 1), torch.zeros(2).long()).isfinite()
