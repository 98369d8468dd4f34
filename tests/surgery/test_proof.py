"""A proof that compared nothing is no proof: whatever a model returns, a fault in it shows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import obc
from obc.running.difference import distance
from tests.nets.wrap import Wrap
from tests.untouched import untouched


class Answer:
    """What a model returns where it returns an object of its own."""

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores


class Slotted:
    __slots__ = ("scores",)

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores


RETURNS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda y: y,
    "index": lambda y: y.argmax(1),
    "object": Answer,
    "slots": Slotted,
    "empty": lambda y: {"boxes": y[:0], "labels": y[:0].argmax(1)},
    "floats": lambda y: {"best": y.max().item()},
    "numbers": lambda y: {"label": int(y.argmax())},
    "partly": lambda y: (torch.ones(3), y.argmax(1)),
    "nothing": lambda y: None,
    "sparse": lambda y: y.to_sparse(),
    "complex": lambda y: torch.complex(y, y + 1),
}


def net(back: Callable[[Tensor], Any], honest: bool) -> Wrap:
    """Two layers, and between them a factor that follows the width, or does not."""

    def run(m: nn.Module, x: Tensor) -> Any:
        y = F.relu(m.up(x))
        return back(m.down(y * (16.0 if honest else float(y.shape[1]))))

    torch.manual_seed(0)
    return Wrap(run, up=nn.Linear(4, 16), down=nn.Linear(16, 3))


HALF = obc.Plan.from_kept(
    obc.trace(net(RETURNS["tensor"], True), torch.ones(2, 4)), {"up": range(8)}
)


@pytest.mark.parametrize("kind", RETURNS)
def test_a_fault_shows_whatever_the_model_returns(kind: str) -> None:
    model, example = net(RETURNS[kind], honest=False), torch.rand(2, 4)
    with untouched(model), pytest.raises(obc.ObcError):
        obc.apply(model, HALF, example=example)


@pytest.mark.parametrize("kind", RETURNS)
def test_without_a_fault_the_cut_is_made(kind: str) -> None:
    model, example = net(RETURNS[kind], honest=True), torch.rand(2, 4)
    obc.apply(model, HALF, example=example)
    assert model.up.weight.shape == (8, 4)


@pytest.mark.parametrize("kind", RETURNS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["example", "weights"])
def test_what_is_not_finite_proves_nothing(kind: str, bad: float, where: str) -> None:
    model, example = net(RETURNS[kind], honest=True), torch.rand(2, 4)
    if where == "example":
        example[:] = bad
    else:
        model.down.weight.data[:] = bad
    with untouched(model), pytest.raises(obc.ObcError, match="no finite floating-point number"):
        obc.apply(model, HALF, example=example)


@pytest.mark.parametrize(
    "count", [lambda y: y.shape[1], lambda y: torch.tensor(y.shape[1]), lambda y: [y.shape[1] > 8]]
)
def test_whole_numbers_that_follow_the_width_show(count: Callable[[Tensor], Any]) -> None:
    def run(m: nn.Module, x: Tensor) -> Any:
        y = F.relu(m.up(x))
        return m.down(y), count(y)

    model, example = Wrap(run, up=nn.Linear(4, 16), down=nn.Linear(16, 3)), torch.rand(2, 4)
    with untouched(model), pytest.raises(obc.ObcError, match="other whole numbers"):
        obc.apply(model, HALF, example=example)
    assert not len(obc.trace(model, example))  # and is not offered


def test_verify_refuses_to_compare_nothing() -> None:
    model, example = net(RETURNS["index"], honest=True), torch.rand(2, 4)
    small = obc.apply(net(RETURNS["index"], honest=True), HALF, example=example)
    assert obc.verify(model, small, HALF, example) < 1e-5
    with pytest.raises(obc.ObcError, match="no finite floating-point number"):
        obc.verify(model, small, HALF, example * float("nan"))
    small.down.weight.data.copy_(small.down.weight.roll(1, 1))
    with pytest.raises(obc.ObcError, match=r"differs from the masked original .* in 'down'"):
        obc.verify(model, small, HALF, example)


def test_attention_is_compared_as_a_whole() -> None:
    """A cut attention layer computes in another order, so its operators cannot be compared."""
    attend = nn.MultiheadAttention(12, 4, batch_first=True)
    model = Wrap(lambda m, x: m.head(m.attend(x, x, x)[0]).argmax(-1), attend=attend)
    model.head = nn.Linear(12, 3)
    example = torch.rand(2, 5, 12)
    sites = obc.trace(model, example)
    kept = {s.name: [0, 2] for s in sites if s.heads}
    assert kept
    obc.apply(model, obc.Plan.from_kept(sites, kept), example=example)
    assert model.attend.num_heads == 2


class Heads(nn.Module):
    """Attention by torch's fused operator, which puts out a statistic over its heads as well."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, -1, 2).permute(2, 0, 3, 1, 4)
        y = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return y, y.argmax(-1)


def test_heads_show_beside_a_statistic_of_another_shape() -> None:
    model, x = Heads(), torch.rand(2, 5, 8)
    sites = obc.trace(model, x)
    assert sites.names == ("qkv",) and sites[0].heads
    obc.apply(model, obc.Plan.from_kept(sites, {"qkv": [0, 2]}), example=x)
    assert model.out.in_features == 4


def test_statistics_are_those_of_the_kept_channels() -> None:
    """A norm puts out its mean as well, of which no label tells (ViTMAE, beside its indices)."""
    torch.manual_seed(0)
    model = Wrap(lambda m, x: m.down(m.norm(m.up(x))).argmax(-1), up=nn.Linear(4, 12))
    model.norm, model.down, x = nn.LayerNorm(12), nn.Linear(12, 3), torch.rand(2, 4)
    sites = obc.trace(model, x)
    assert sites.names == ("up",)
    obc.apply(model, obc.Plan.from_kept(sites, {"up": range(5)}), example=x)


def cancelling(size: float, honest: bool = True) -> tuple[Wrap, Tensor]:
    """Two layers whose outputs nearly cancel: where they are large, float32 leaves few digits."""

    def run(m: nn.Module, x: Tensor) -> Tensor:
        y = F.relu(m.up(x))
        return (m.plus(y) - m.minus(y)) * (1.0 if honest else float(y.shape[1]) / 256)

    torch.manual_seed(0)
    last = {name: nn.Linear(256, 3, bias=False) for name in ("plus", "minus")}
    model = Wrap(run, up=nn.Linear(32, 256), **last)
    with torch.no_grad():
        model.plus.weight.mul_(size)
        model.minus.weight.copy_(model.plus.weight * (1 + torch.randn(3, 256) / size))
    return model, torch.randn(8, 32)


def test_double_precision_tells_rounding_from_a_fault() -> None:
    model, x = cancelling(1e6)
    plan = obc.Plan.from_kept(obc.trace(cancelling(1.0)[0], x), {"up": range(0, 256, 2)})
    before = copy.deepcopy(model)
    masked = copy.deepcopy(model)
    for layer in (masked.plus, masked.minus):
        layer.weight.data[:, 1::2] = 0
    off = distance([masked(x)], [narrowed(model, plan)(x)])
    assert off > torch.finfo(torch.float32).eps ** 0.5, "rounds as any other network does"
    obc.apply(model, plan, example=x)
    assert model.up.out_features == 128 and model.up.weight.dtype == torch.float32
    exact = [m.double()(x.double()) for m in (copy.deepcopy(model), narrowed(before, plan))]
    assert torch.equal(*exact)


def test_a_fault_is_one_in_double_precision_too() -> None:
    model, x = cancelling(1e6, honest=False)
    plan = obc.Plan.from_kept(obc.trace(cancelling(1.0)[0], x), {"up": range(0, 256, 2)})
    with untouched(model), pytest.raises(obc.ObcError, match="differs"):
        obc.apply(model, plan, example=x)


def narrowed(model: nn.Module, plan: obc.Plan) -> nn.Module:
    """Cut by hand."""
    small, kept = copy.deepcopy(model), list(plan.kept["up"])
    for layer, dim in ((small.up, 0), (small.plus, 1), (small.minus, 1)):
        layer.weight = nn.Parameter(layer.weight.detach().index_select(dim, torch.tensor(kept)))
    small.up.bias = nn.Parameter(small.up.bias.detach()[kept])
    return small
