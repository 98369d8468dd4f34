"""Channels go through picks, writes, windows and padding of positions, and through padding of
their own where its amount follows; each network is cut, and must compute what its masked self does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import obc
from obc.models import resnet20_padded
from tests.nets.wrap import Wrap
from tests.oracles import obvious, rolls, verifying
from tests.reference import random_kept
from tests.sensitive import sensitive

Body = Callable[[Any, Tensor], Tensor]
TOKENS = torch.rand(2, 6, 5, dtype=torch.float64)
PIXELS = torch.rand(2, 3, 8, 8, dtype=torch.float64)
ROWS = torch.tensor([3, 0, 5, 1])


def tokens(body: Body, **layers: nn.Module) -> nn.Module:
    """Ten channels for each of six tokens, what is done with them, and a layer that reads them."""

    def run(m: Any, x: Tensor) -> Tensor:
        return m.head(body(m, F.gelu(m.stem(x))))

    layers = {"stem": nn.Linear(5, 10), "head": nn.Linear(10, 3), **layers}
    return sensitive(Wrap(run, **layers), 0, TOKENS)


def written(m: Any, x: Tensor) -> Tensor:
    y = x.new_zeros(2, 9, x.shape[-1])
    y[:, torch.arange(6)] = x
    return y


def put(m: Any, x: Tensor) -> Tensor:
    flat = x.flatten(0, 1)
    y = torch.zeros_like(flat)
    y[torch.arange(11, -1, -1)] = flat
    return y


def masked_rows(m: Any, x: Tensor) -> Tensor:
    mask = (torch.arange(6) % 2 == 0)[None, :, None].expand_as(x)
    return x.masked_scatter(mask, m.side(TOKENS)[:, :3])


def overlapping(m: Any, x: Tensor) -> Tensor:
    """Longformer's chunks: windows of four tokens, two apart."""
    x = x.contiguous()
    size, stride = (2, 2, 4, x.shape[2]), (x.stride(0), 2 * x.stride(1), x.stride(1), x.stride(2))
    return x.as_strided(size, stride).sum(2)


def added_at(m: Any, x: Tensor) -> Tensor:
    return torch.zeros_like(x[0]).index_add_(0, ROWS, x[0, :4]) + x[1]


def scattered(m: Any, x: Tensor) -> Tensor:
    rows = ROWS[None, :, None].expand(2, 4, x.shape[2])
    return torch.zeros_like(x).scatter_add(1, rows, x[:, :4])


def grouped(m: Any, x: Tensor) -> Tensor:
    """Two experts with weights of their own; the first takes five rows."""
    rows = x.flatten(0, 1)
    ends = torch.tensor([5, 12], dtype=torch.int32)
    return torch._grouped_mm(rows, m.experts, ends)


def expert(m: Any, x: Tensor) -> Tensor:
    return m.head(F.gelu(grouped(m, F.gelu(m.stem(x)))))


FREE: dict[str, Callable[[], nn.Module]] = {
    "gather": lambda: tokens(
        lambda m, x: x.gather(1, ROWS[None, :, None].expand(2, 4, x.shape[2]))
    ),
    "masked_fill_": lambda: tokens(
        lambda m, x: x.clone().masked_fill_((torch.arange(6) > 3)[None, :, None], 0.3)
    ),
    "index_put_": lambda: tokens(put),
    "index_add_": lambda: tokens(added_at),
    "scatter_add": lambda: tokens(scattered),
    "masked_scatter": lambda: tokens(masked_rows, side=nn.Linear(5, 10)),
    "as_strided": lambda: tokens(overlapping),
}


def prove(model: nn.Module, example: Tensor, limit: float = 1e-9) -> obc.Sites:
    """Cut 30% of every site; two oracles agree, and notice each weight that is rolled."""
    sites = obc.trace(model, example)
    plan = obc.Plan.from_kept(sites, random_kept(sites))
    pruned = obc.apply(copy.deepcopy(model), plan, example=example)
    oracles = [verifying(model, plan, example), obvious(model, sites, plan, example)]
    assert all(oracle(pruned) < limit for oracle in oracles)
    for member in rolls(model, pruned, sites, plan):
        assert all(oracle(pruned) > 10 * limit for oracle in oracles), member
    return sites


@pytest.mark.parametrize("name", FREE)
def test_channels_of_picked_positions_go(name: str) -> None:
    assert ("stem", 10) in [(s.name, s.size) for s in prove(FREE[name](), TOKENS)]


def test_channels_of_experts_go() -> None:
    """`_grouped_mm` knows no float64."""
    layers = {"stem": nn.Linear(5, 32), "head": nn.Linear(48, 3)}
    model = Wrap(expert, experts=nn.Parameter(torch.zeros(2, 32, 48)), **layers)
    sites = prove(sensitive(model).float(), TOKENS.float(), 1e-3)
    assert [(s.name, s.size) for s in sites] == [("stem", 4), ("experts", 6)]
    assert any("experts are picked by index" in f.reason for f in sites.frozen)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (lambda m, x: x.gather(2, torch.tensor([5, 0] * 5).expand(2, 6, 10)), "picked by index"),
        (lambda m, x: x.index_fill(2, torch.tensor([1]), 0.5), "no rule for"),
        (
            lambda m, x: x.masked_scatter(x > 0, torch.arange(120.0, dtype=x.dtype)),
            "number by number",
        ),
    ],
)
def test_picked_channels_stay(body: Body, text: str) -> None:
    sites = obc.trace(tokens(body), TOKENS)
    assert not sites and any(text in f.reason for f in sites.frozen)


# Padding and windows.


def pixels(body: Body, **layers: nn.Module) -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        return m.head(body(m, F.gelu(m.stem(x)))).mean((2, 3))

    layers = {"stem": nn.Conv2d(3, 6, 3), "head": nn.Conv2d(6, 3, 1), **layers}
    return sensitive(Wrap(run, **layers), 0, PIXELS)


def folded(m: Any, x: Tensor) -> Tensor:
    return F.fold(F.unfold(x, 2) * 0.5, x.shape[2:], 2)


@pytest.mark.parametrize(
    "body", [lambda m, x: F.pad(x, (1, 2, 0, 1), value=0.5), folded], ids=["pad", "fold"]
)
def test_padded_positions_freeze_no_channel(body: Body) -> None:
    assert [(s.name, s.size) for s in prove(pixels(body), PIXELS)] == [("stem", 6)]


class Grown(nn.Module):
    """He's option A: where a block has more channels than its input, zeros are added around."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.extra = kind, 3
        self.stem, self.wide = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 10, 1)
        self.last = nn.Conv2d(10, 10, 1)
        self.head = nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.wide(F.gelu(x))
        around = {
            "shapes": (y.shape[1] - x.shape[1]) // 2,
            "attribute": self.extra,
            "literal": 3,
        }[self.kind]
        x = F.gelu(y + F.pad(x, (0, 0, 0, 0, around, around)))
        return self.head((x + self.last(x)).mean((2, 3)))


@pytest.mark.parametrize("kind", ["shapes", "attribute"])
def test_padded_channels_go_with_what_they_meet(kind: str) -> None:
    sites = prove(sensitive(Grown(kind), 0, PIXELS), PIXELS)
    assert [(s.name, s.size) for s in sites] == [("stem", 4), ("wide", 3)]
    owned = {m.index.shape[1] for m in sites["wide"].members}
    assert owned == {2}, "one of the zeros before goes with one of those behind"


def test_a_literal_number_of_padded_channels_stays() -> None:
    sites = prove(sensitive(Grown("literal"), 0, PIXELS), PIXELS)
    assert [(s.name, s.size) for s in sites] == [("stem", 4)]
    assert any(f.layer == "wide" and f.size == 6 for f in sites.frozen)


def test_nothing_of_a_padded_resnet_is_frozen() -> None:
    sites = obc.trace(resnet20_padded(width=8), torch.rand(1, 3, 16, 16))
    assert [f.layer for f in sites.frozen] == ["linear"]
