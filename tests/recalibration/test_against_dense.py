"""Every kind of layer, fitted, is what a dense float64 least-squares solution says."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import obc
from tests.recalibration.dense import best
from tests.reference import relative_error


class Joined(nn.Module):
    """Two producers side by side, read by one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.reader = nn.Linear(5, 6), nn.Linear(5, 4), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.reader(functional.relu(torch.cat([self.a(x), self.b(x)], -1)))


class Heads(nn.Module):
    """Attention whose output projection reads heads."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.reader = nn.Linear(6, 36), nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, -1, 4)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v)
        return self.reader(y.transpose(1, 2).flatten(2))


def chain(first: nn.Module, reader: nn.Module, *between: nn.Module) -> nn.Module:
    net = nn.Sequential()
    net.add_module("first", first)
    net.add_module("act", nn.ReLU())
    for i, module in enumerate(between):
        net.add_module(f"between{i}", module)
    net.add_module("reader", reader)
    return net


def hugging() -> nn.Module:
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D
    return chain(nn.Linear(5, 8), conv1d(3, 8))


# What to build, the shape of one sample, and where the channels of its output are.
KINDS = {
    "linear": (lambda: chain(nn.Linear(5, 9), nn.Linear(9, 3)), (5,), -1),
    "linear without bias": (lambda: chain(nn.Linear(5, 9), nn.Linear(9, 3, False)), (5,), -1),
    "linear on tokens": (lambda: chain(nn.Linear(5, 9), nn.Linear(9, 3)), (4, 5), -1),
    "Conv1D of Hugging Face": (hugging, (5,), -1),
    "concatenation": (Joined, (5,), -1),
    "heads": (Heads, (3, 6), -1),
    "1d": (lambda: chain(nn.Conv1d(2, 6, 3), nn.Conv1d(6, 3, 3, dilation=2)), (2, 12), 1),
    "strided": (lambda: chain(nn.Conv2d(2, 6, 3), nn.Conv2d(6, 3, 3, 2, 1)), (2, 7, 8), 1),
    "oblong": (
        lambda: chain(nn.Conv2d(2, 6, 1), nn.Conv2d(6, 3, (1, 3), (2, 1), (1, 0), (1, 2))),
        *((2, 6, 7), 1),
    ),
    "same": (
        lambda: chain(nn.Conv2d(2, 5, 1), nn.Conv2d(5, 3, 3, padding="same")),
        *((2, 5, 5), 1),
    ),
    "reflected": (
        lambda: chain(
            nn.Conv2d(2, 5, 1), nn.Conv2d(5, 3, 3, padding=1, padding_mode="reflect", bias=False)
        ),
        *((2, 5, 5), 1),
    ),
    "3d": (lambda: chain(nn.Conv3d(2, 5, 1), nn.Conv3d(5, 2, 2)), (2, 4, 3, 4), 1),
    "groups": (lambda: chain(nn.Conv2d(2, 8, 1), nn.Conv2d(8, 6, 3, groups=2)), (2, 6, 6), 1),
    "transposed": (
        lambda: chain(nn.Conv2d(2, 6, 1), nn.ConvTranspose2d(6, 3, 3, 2, 1, 1)),
        *((2, 4, 4), 1),
    ),
    "transposed groups": (
        lambda: chain(nn.Conv1d(2, 8, 1), nn.ConvTranspose1d(8, 6, 3, 2, groups=2, dilation=2)),
        *((2, 6), 1),
    ),
    "flatten": (
        lambda: chain(nn.Conv2d(2, 5, 3), nn.Linear(20, 3), nn.Flatten()),
        *((2, 4, 4), -1),
    ),
}


def half(site: obc.Site) -> list[int]:
    """Every other channel, from the second on."""
    return list(range(1, site.size, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_the_reader(kind: str) -> None:
    build, shape, axis = KINDS[kind]
    torch.manual_seed(0)
    net = build().double().eval()
    x = torch.randn(64, *shape, dtype=torch.float64)
    sites = obc.trace(net, x[:2])
    assert sites
    kept = {site.name: half(site) for site in sites}
    # What the reader puts out stays whole, so that its output can be compared with the original's.
    kept = {n: k for n, k in kept.items() if n != "reader"}
    assert kept
    small = obc.apply(copy.deepcopy(net), obc.Plan.from_kept(sites, kept), example=x[:2])
    naive = copy.deepcopy(small)
    account = obc.recalibrate(small, net, x.split(16), residual=False, example=x[:2])
    fit = next(f for f in account.fits if f.name == "reader.weight")
    assert fit.kept and fit.after < fit.before and account.kept, fit
    assert fit.after < 1

    trained = torch.arange(64) % 8 != 7
    reads: list[Tensor] = []
    small.get_submodule("reader").register_forward_pre_hook(lambda m, a: reads.append(a[0]))
    small(x[trained])
    layer = naive.get_submodule("reader")
    intercept = layer.bias is not None
    expected = best(layer, reads[0], net(x[trained]).detach(), axis, fit.ridge, intercept)
    fitted = small.get_submodule("reader").weight.detach()
    assert relative_error([expected], [fitted]) < 1e-8
    assert relative_error([expected], [layer.weight.detach()]) > 1e-2, "a comparison of nothing"
    other = best(layer, reads[0], net(x[trained]).detach(), axis, 10 * fit.ridge, intercept)
    assert relative_error([other], [fitted]) > 1e-6, "the reference does not see the ridge"
    if intercept:
        gap = (net(x[trained]) - small(x[trained])).movedim(axis, -1).flatten(0, -2).mean(0)
        assert gap.abs().max() < 1e-9, "the intercept does not level the means"


def test_depthwise_filters() -> None:
    """Each filter is fitted on its own channel; what reads them next takes over the rest."""
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(2, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, groups=8), nn.ReLU(), nn.Conv2d(16, 3, 1)),
    ).double()
    x = torch.randn(64, 2, 6, 6, dtype=torch.float64)
    sites = obc.trace(net, x[:2])
    kept = {site.name: half(site) for site in sites}
    small = obc.apply(copy.deepcopy(net), obc.Plan.from_kept(sites, kept))
    naive = copy.deepcopy(small)
    account = obc.recalibrate(small, net, x.split(16))
    fit = next(f for f in account.fits if f.name == "4.weight")
    assert fit.kept and fit.inputs == 9

    trained = x[torch.arange(64) % 8 != 7]
    outputs = [2 * c + i for c in kept["2"] for i in range(2)]
    target = net[:5](trained)[:, outputs].detach()
    reads = small[:4](trained)
    expected = best(naive[4], reads, target, 1, fit.ridge, True)
    assert relative_error([expected], [small[4].weight.detach()]) < 1e-8
    assert relative_error([expected], [naive[4].weight.detach()]) > 1e-3, "compares nothing"
