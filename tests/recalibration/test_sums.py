"""`source="sums"`: what lost inputs, what adds to a residual sum, and the scales of norms."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

import obc
from obc.recalibration.recalibrate import said_by
from tests.recalibration.dense import best
from tests.reference import relative_error


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first = nn.RMSNorm(6), nn.Linear(6, 12)
        self.last = nn.Linear(12, 6, bias=False)

    def reads(self, h: Tensor) -> Tensor:
        return torch.tanh(self.first(self.norm(h)))

    def forward(self, h: Tensor) -> Tensor:
        return h + self.last(self.reads(h))


def stream() -> tuple[nn.Module, nn.Module, Tensor]:
    """A stream of two branches, of which one is cut; the other's last layer loses no inputs."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), Branch(), Branch(), nn.RMSNorm(6), nn.Linear(6, 3))
    net = net.double().eval()
    x = torch.randn(128, 5, 4, dtype=torch.float64)
    plan = obc.Plan.from_kept(obc.trace(net, x[:2]), {"1.first": [0, 2, 3, 7, 8, 11]})
    return net, obc.apply(copy.deepcopy(net), plan), x


def test_each_sum_is_brought_back_in_turn() -> None:
    net, small, x = stream()
    naive = copy.deepcopy(small)
    account = obc.recalibrate(small, net, x.split(16), source="sums")
    fits = {f.name: f for f in account.fits}
    assert account.kept and account.residual
    h = whole = net[0](x[torch.arange(128) % 8 != 7]).detach()
    for number in (1, 2):
        fit, original = fits[f"{number}.last.weight"], whole
        whole = net[number](whole).detach()
        assert fit.kept and fit.rows == 112 * 5
        root = whole.square().mean(-1, keepdim=True).rsqrt()
        reads, layer = small[number].reads(h).detach(), naive[number].last
        sums, outputs = (
            best(layer, reads * root, target * root, -1, fit.ridge, False)
            for target in (whole - h, whole - original)
        )
        fitted = small[number].last.weight.detach()
        assert relative_error([sums], [fitted]) < 1e-8
        if number == 2:  # in front of the first branch nothing has been lost
            assert relative_error([outputs], [fitted]) > 1e-3, "sees no difference of the targets"
        h = small[number](h).detach()
    scale, target = fits["3.weight"], net[3](whole).detach()
    x, y = naive[3](h).detach().flatten(0, 1), target.flatten(0, 1)
    ridge = 1 + scale.ridge  # of each channel alone
    moved = 1 + ((y - x) * x).sum(0) / x.square().sum(0) / ridge
    assert scale.kept
    assert relative_error([moved * naive[3].weight.detach()], [small[3].weight.detach()]) < 1e-8
    assert relative_error([naive[3].weight.detach()], [small[3].weight.detach()]) > 1e-4


def test_others_stay_as_they_are() -> None:
    net, small, x = stream()
    naive = copy.deepcopy(small)
    account = obc.recalibrate(small, net, x.split(16), source="sums")
    fits = {f.name: f for f in account.fits}
    for name in ("0.weight", "1.first.weight", "2.first.weight", "4.weight"):
        assert fits[name].note == "lost no inputs and adds to no residual sum", name
        assert torch.equal(small.get_parameter(name), naive.get_parameter(name)), name
    everything = obc.recalibrate(copy.deepcopy(naive), net, x.split(16))
    assert {f.name for f in everything.fits if f.kept} > {f.name for f in account.fits if f.kept}


def test_outputs_are_targets_where_sums_are_not_to_be() -> None:
    net, small, x = stream()
    other = copy.deepcopy(small)
    obc.recalibrate(small, net, x.split(16), source="sums")
    account = obc.recalibrate(other, net, x.split(16), source="sums", residual=False)
    assert not account.residual
    assert relative_error([small[2].last.weight.detach()], [other[2].last.weight.detach()]) > 1e-3


def test_a_language_model_asks_for_it() -> None:
    ids = torch.arange(64) % 7
    task = obc.tasks.Language(ids, ids, length=16, row=8)
    assert said_by(task) == {"residual": True, "source": "sums", "judge": None}
    assert said_by(obc.tasks.Classification) == {
        "residual": None,
        "source": "pruned",
        "judge": None,
    }
