"""Every kind of layer, fitted, is what a dense float64 least-squares solution says."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import obc
from obc.recalibration.rows import Portion
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


class Embedded(nn.Module):
    """Channels of an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.reader = nn.Embedding(40, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.reader(torch.tanh(self.table((9 * x).long() % 40)))


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
    "embedding": (Embedded, (5,), -1),
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


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_norms(norm: type[nn.Module]) -> None:
    """Scale and shift of each channel, on what is left to be normed together."""
    torch.manual_seed(0)
    net = chain(nn.Linear(5, 10), nn.Linear(10, 3), norm(10)).double()
    x = torch.randn(64, 5, dtype=torch.float64)
    kept = [1, 2, 4, 7, 9]
    small = obc.apply(
        copy.deepcopy(net), obc.Plan.from_kept(obc.trace(net, x[:2]), {"first": kept})
    )
    naive = copy.deepcopy(small.between0)
    account = obc.recalibrate(small, net, x.split(16))
    fit = next(f for f in account.fits if f.name == "between0.weight")
    assert fit.kept and fit.inputs == 1
    trained = x[torch.arange(64) % 8 != 7]
    reads = torch.relu(small.first(trained)).detach()
    target = net.between0(torch.relu(net.first(trained)))[:, kept].detach()
    expected = best(naive, reads, target, -1, fit.ridge, norm is nn.LayerNorm)
    assert relative_error([expected], [small.between0.weight.detach()]) < 1e-8
    assert relative_error([expected], [naive.weight.detach()]) > 1e-2, "compares nothing"


class Twice(nn.Module):
    """A batch norm behind a layer that is left alone, since it serves twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared = nn.Linear(5, 12), nn.Linear(12, 8)
        self.norm, self.head = nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 3)

    def reads(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.shared(torch.relu(y)) + self.shared(torch.sigmoid(y))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.reads(x)))


def test_statistics_of_a_batch_norm() -> None:
    """Measured again on what the cut network reads, where no fitted layer stands before it."""
    torch.manual_seed(0)
    net = Twice().double()
    x = torch.randn(512, 5, dtype=torch.float64)
    net(x)
    net.eval()
    sites = obc.trace(net, x[:2])
    small = obc.apply(copy.deepcopy(net), obc.Plan.from_kept(sites, {"first": [0, 3, 6, 8, 9, 11]}))
    account = obc.recalibrate(small, net, x.split(64))
    fit = next(f for f in account.fits if f.name == "norm.weight")
    assert fit.kept and fit.after < fit.before
    reads = small.reads(x[torch.arange(512) % 8 != 7]).detach()
    statistics = [reads.mean(0), reads.var(0, correction=0)]
    assert relative_error(statistics, [small.norm.running_mean, small.norm.running_var]) < 1e-8
    assert relative_error(statistics, [net.norm.running_mean, net.norm.running_var]) > 1e-2


class SelfAttention(nn.Module):
    """Attention of torch's over what a linear stem puts out: half of it determines the rest."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(3, 8), nn.Linear(8, 2)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        return self.head(torch.tanh(self.attention(y, y, y)[0]))


@pytest.mark.parametrize("batch_first", [True, False])
def test_multihead_attention(batch_first: bool) -> None:
    """Cut, it computes three products in place of one, of rows in another order."""
    torch.manual_seed(0)
    net = SelfAttention(batch_first).double().eval()
    x = torch.randn(64, 5, 3, dtype=torch.float64)
    sites = obc.trace(net, x[:2])
    small = obc.apply(
        copy.deepcopy(net), obc.Plan.from_kept(sites, {"stem": [1, 2, 5, 7]}), example=x[:2]
    )
    account = obc.recalibrate(small, net, x.split(16), example=x[:2])
    fits = [f for f in account.fits if f.name == "attention.in_proj_weight"]
    assert [f.kept for f in fits] == [True] * 3
    assert all(f.before > 0.1 and f.after < 1e-6 for f in fits)
    assert account.before > 1e-3 and account.after < 1e-6
    assert "forward" not in vars(net.attention), "the original is not as it was"


class Grouped(nn.Module):
    """Two experts in one stack of weights, the first with a third of the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(5, 32), nn.Linear(16, 3)
        self.experts = nn.Parameter(torch.randn(2, 32, 16) / 6)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.tanh(self.stem(x)).flatten(0, 1)
        ends = torch.tensor([len(rows) // 3, len(rows)], dtype=torch.int32)
        return self.head(torch.tanh(torch._grouped_mm(rows, self.experts, ends)))


def test_experts_in_one_product() -> None:
    """Each expert on the rows that the original sorts to it; the kernel knows no float64."""
    torch.manual_seed(0)
    net, x = Grouped().eval(), torch.randn(48, 6, 5)
    sites = obc.trace(net, x[:2])
    small = obc.apply(copy.deepcopy(net), obc.Plan.from_kept(sites, {"stem": [0, 2]}))
    naive = small.experts.detach().clone()
    account = obc.recalibrate(small, net, [x], residual=False)
    fits = {f.name: f for f in account.fits}
    kept = [*range(8), *range(16, 24)]
    for expert, rows in enumerate((slice(0, 96), slice(96, 288))):
        u = torch.tanh(net.stem(x)).flatten(0, 1)[rows].detach()
        t = u @ net.experts[expert].detach()
        trained = ~Portion(0, 48, 0, 48).held(torch.arange(len(u)), len(u))
        layer = nn.Linear(16, 16, bias=False).double()
        layer.weight.data.copy_(naive[expert].mT)
        reads = u[trained][:, kept].double()
        expected = best(
            layer, reads, t[trained].double(), -1, fits[f"experts[{expert}]"].ridge, False
        )
        assert relative_error([expected], [small.experts[expert].detach().mT.double()]) < 1e-4
        assert relative_error([expected], [naive[expert].mT.double()]) > 1e-2, "compares nothing"
