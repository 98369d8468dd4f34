"""Products in bfloat16: the identity's part exact, the rest and gradients off by its rounding."""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import obc
from obc.equivalent import rounded

KEPT = torch.tensor([0, 2, 3, 7, 11])
SHAPES = [((12, 6, 3, 3), 0), ((6, 12, 3, 3), 1), ((12, 7), 0), ((7, 12), 1)]


@pytest.fixture
def medium(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As a user asks for it, on a processor that has what it takes."""
    monkeypatch.setattr(rounded, "_has", lambda _: True)
    monkeypatch.setattr(rounded, "_LEAST", 0)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


def near_identity(scale: float) -> Tensor:
    return torch.eye(12)[KEPT] + scale * torch.randn(len(KEPT), 12)


def exact(x: Tensor, matrix: Tensor, dim: int) -> Tensor:
    """The slow form in float64: Σ_j matrix[i, j] x[..., j, ...]."""
    return torch.tensordot(matrix.double(), x.double(), ([1], [dim])).movedim(0, dim)


@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_only_the_change_is_rounded(shape: tuple[int, ...], dim: int) -> None:
    x, matrix = torch.randn(shape), near_identity(0.01)
    right = exact(x, matrix, dim)
    off = (rounded.mixed(x, [(matrix, KEPT, dim)]) - right).abs().max()
    change = (right - x.index_select(dim, KEPT)).abs().max()
    whole = torch.movedim(x.movedim(dim, -1).bfloat16() @ matrix.bfloat16().t(), -1, dim)
    control = (whole - right).abs().max()
    assert off < 2**-7 * change and 8 * off < control  # all of it in bfloat16 is off by far more


def test_entries_near_one_keep_their_updates() -> None:
    x, matrix = torch.ones(12, 2), torch.eye(12)[KEPT] * (1 + 1e-4)
    assert torch.allclose(rounded.mixed(x, [(matrix, KEPT, 0)]), torch.tensor(1 + 1e-4), atol=1e-6)
    assert torch.equal(matrix.bfloat16() @ x.bfloat16(), torch.ones(5, 2).bfloat16())


@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_gradients(shape: tuple[int, ...], dim: int) -> None:
    x, matrix = torch.randn(shape, requires_grad=True), near_identity(0.1).requires_grad_()
    small = rounded.mixed(x, [(matrix, KEPT, dim)])
    above = torch.randn_like(small)
    found = torch.autograd.grad(small, (x, matrix), above)
    wide = [t.detach().double().requires_grad_() for t in (x, matrix)]
    right = torch.autograd.grad(exact(wide[0], wide[1], dim), wide, above.double())
    for a, b in zip(found, right, strict=True):
        assert a.dtype == torch.float32 and a.is_contiguous()
        assert 0 < (a - b).norm() < 2**-7 * b.norm()


@pytest.mark.parametrize("dims", [(0, 1), (1, 0)])
def test_both_sides(dims: tuple[int, int]) -> None:
    """As after one another, in either order: Ŵ = C W Dᵀ and its three gradients."""
    x = torch.randn(12, 12, 3, 3, requires_grad=True)
    matrices = [near_identity(0.1).requires_grad_() for _ in dims]
    small = rounded.mixed(x, [(m, KEPT, d) for m, d in zip(matrices, dims, strict=True)])
    wide = [t.detach().double().requires_grad_() for t in (x, *matrices)]
    right = exact(exact(wide[0], wide[1], dims[0]), wide[2], dims[1])
    assert small.is_contiguous() and (small - right).norm() < 2**-8 * right.norm()
    above = torch.randn_like(small)
    found = torch.autograd.grad(small, (x, *matrices), above)
    for a, b in zip(found, torch.autograd.grad(right, wide, above.double()), strict=True):
        assert 0 < (a - b).norm() < 2**-7 * b.norm()


def net_with_factors() -> nn.Module:
    """C before, D behind, both between; all away from the identity."""
    net = nn.Sequential(nn.Conv2d(3, 12, 3), nn.ReLU(), nn.Conv2d(12, 10, 3), nn.ReLU())
    net.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(10, 4)])
    sites = obc.trace(net, torch.zeros(1, 3, 8, 8))
    kept = {site.name: range(1, site.size, 2) for site in sites}
    obc.apply(net, obc.Plan.from_kept(sites, kept), equivalent=True)
    for name, p in net.named_parameters():
        if "matrices" in name:
            p.data.add_(0.05 * torch.randn_like(p))
    return net


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_model_follows_torchs_setting(medium: None, layout: torch.memory_format) -> None:
    net, x = net_with_factors().to(memory_format=layout), torch.randn(6, 3, 8, 8)
    found = {}
    for precision in ("medium", "highest"):
        torch.set_float32_matmul_precision(precision)
        net.zero_grad()
        net(x).square().mean().backward()
        values = {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}
        values |= {n: m.weight.detach() for n, m in net.named_children() if hasattr(m, "weight")}
        found[precision] = values
    differ = 0
    for name, right in found["highest"].items():
        off = (found["medium"][name] - right).norm() / right.norm()
        assert off < 0.05
        assert found["medium"][name].stride() == right.stride()
        differ += bool(off > 1e-5)
    assert differ > 6


def test_training_goes_the_same_way(medium: None) -> None:
    """Fifty steps end at the same loss within a thirtieth of what they gained."""
    x, y, start = torch.randn(32, 3, 8, 8), torch.randint(0, 4, (32,)), net_with_factors()
    losses = {}
    for precision in ("medium", "highest"):
        torch.set_float32_matmul_precision(precision)
        net = copy.deepcopy(start)
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        for step in range(50):
            loss = nn.functional.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses[precision, step] = loss.item()
    gained = losses["highest", 0] - losses["highest", 49]
    assert gained > 0.1
    assert abs(losses["medium", 49] - losses["highest", 49]) < gained / 30


def test_merging_keeps_what_was_tuned(medium: None) -> None:
    net, x = net_with_factors(), torch.randn(6, 3, 8, 8)
    before = net(x)
    assert torch.allclose(obc.merge(net)(x), before, atol=1e-6)


def test_without_instructions_or_gain_nothing_is_rounded(
    medium: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.zeros(2, 2)
    assert rounded.allowed(x) and not rounded.allowed(x.double())
    monkeypatch.setattr(rounded, "_LEAST", 5)
    assert not rounded.allowed(x)
    monkeypatch.setattr(rounded, "_LEAST", 0)
    monkeypatch.setattr(rounded, "_has", lambda _: False)
    assert not rounded.allowed(x)
