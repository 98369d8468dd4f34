"""Costs told from counts are the costs of the cut model, for every model there is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import obc
from obc.costs.cost_model import costs_of
from obc.costs.counting import cost
from obc.search.working import Working
from obc.tracing.tracer import Tracing
from tests.cases import NOTHING_TO_PRUNE, Case, case, cases
from tests.parameters import parameters

QUICK = [*cases("must", without=["slow", "hf", "torchvision", "timm"]), case("gpt2")]
OTHERS = [c for c in cases(without=["slow"]) if c not in QUICK and c.name not in NOTHING_TO_PRUNE]


@pytest.mark.slow
@pytest.mark.parametrize("net", parameters(*OTHERS))
def test_every_other_model_too(net: Case) -> None:
    test_a_cut_in_two_steps_is_the_cut_in_one_and_costs_what_was_told(net)


@pytest.mark.parametrize("net", parameters(*QUICK))
def test_a_cut_in_two_steps_is_the_cut_in_one_and_costs_what_was_told(net: Case) -> None:
    model, example = net.model(), net.example()
    tracing = Tracing(model, example)
    sites = tracing.sites
    costs = costs_of(tracing)
    work, once = Working(model, sites), Working(model, sites)
    for _ in range(2):
        work.remove(
            {
                s.name: work.kept[s.name][torch.randperm(s.size)[: s.size // 3]].tolist()
                for s in work.sites
            }
        )
    once.remove(
        {s.name: sorted(set(range(s.size)) - set(work.kept[s.name].tolist())) for s in sites}
    )
    states = [
        dict(w.model.named_parameters()) | dict(w.model.named_buffers()) for w in (work, once)
    ]
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name
    counts = torch.tensor([[len(work.kept[s.name]) for s in sites]])
    found = cost(work.model, example)
    assert (found.macs, found.params) == (int(costs.macs(counts)), int(costs.params(counts)))
    assert int(costs.channels(counts)) == int(counts.sum())
    for site in work.sites:
        shapes = {n: t.shape for n, t in states[0].items()}
        for m in (*site.members, *site.buffers):
            assert m.index.shape[0] == site.size == len(work.kept[site.name])
            assert int(m.index.max()) < shapes[m.name][m.dim]


def test_sliced_sites_are_those_of_a_new_trace() -> None:
    net = case("resnet20")
    model, example = net.model(), net.example()
    work = Working(model, obc.trace(model, example))
    for _ in range(3):
        work.remove({s.name: work.kept[s.name][1::4].tolist() for s in work.sites})
    again = obc.trace(work.model, example)
    for mine, theirs in zip(work.sites, again, strict=True):
        assert (mine.name, mine.size) == (theirs.name, theirs.size)
        for a, b in zip(mine.members, theirs.members, strict=True):
            assert a == b
            assert torch.equal(a.index, b.index)


def test_what_is_left_has_its_original_index() -> None:
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2))
    work = Working(model, obc.trace(model, torch.zeros(1, 3)))
    work.remove({"0": [0, 3]})
    work.remove({"0": [4]})
    assert work.kept["0"].tolist() == [1, 2, 5]
    assert torch.equal(work.model[0].weight, model[0].weight[[1, 2, 5]])


class Viewing(nn.Module):
    """Its code wants rows of channels in one piece, or hands such on."""

    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 4, 3)
        self.inside = inside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.b(self.a(x).relu())
        return x.view(len(x), -1) if self.inside else x


@pytest.mark.parametrize("inside", [False, True])
def test_the_order_in_memory_is_left_alone_where_code_depends_on_it(inside: bool) -> None:
    model = Viewing(inside)
    x = torch.randn(2, 1, 8, 8)
    sites = obc.trace(model, x)
    work = Working(model, sites)
    work.remove({"a": [1]})
    assert work.model.a.weight.is_contiguous()
    assert work.model(x).is_contiguous()
    free = nn.Sequential(model.a, nn.ReLU(), model.b, nn.Flatten())
    other = Working(free, obc.trace(free, x))
    other.remove({"0": [1]})
    assert not other.model[2].weight.is_contiguous(), "the control"
    torch.testing.assert_close(other.model(x), work.model(x).flatten(1), rtol=1e-5, atol=1e-6)


def test_a_model_whose_cost_does_not_follow_its_channels_is_refused() -> None:
    """The control for the check: it multiplies more the narrower it gets."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 12), nn.Linear(12, 4)
            self.extra = torch.ones(5, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(20 - self.a.out_features):
                self.extra @ self.extra
            return self.b(self.a(x))

    model = Odd()
    tracing = Tracing(model, torch.zeros(1, 4))
    assert tracing.sites.names == ("a",)
    with pytest.raises(obc.ObcError, match="does not follow its channels"):
        costs_of(tracing)
