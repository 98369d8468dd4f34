"""Twins of a block are tried once, and that changes nothing."""

import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import obc
from obc.models import resnet20, vit_small
from obc.tracing.repeats import repeats
from obc.tracing.solve import base_classes
from obc.tracing.tracer import Tracing
from tests.cases import CASES, Case
from tests.parameters import parameters

SMALL = [c for c in CASES if c.tags.isdisjoint(("torchvision", "timm"))]


class Block(nn.Module):
    """A residual block; `width` is a size that its code holds, or None where it asks."""

    def __init__(self, width: int | None = None) -> None:
        super().__init__()
        self.up, self.down, self.width = nn.Linear(6, 12), nn.Linear(12, 6), width

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x).relu()
        width = y.shape[-1] if self.width is None else self.width
        return x + self.down(y.view(-1, width))


def stack(*blocks: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 6), *blocks, nn.Linear(6, 2))


def passed_by(model: nn.Module, example: Tensor) -> list[str]:
    tracing = Tracing(model, example)
    return [c.path for c in repeats(tracing.flow, base_classes(tracing.flow.ledger), model)]


def test_all_but_the_first_of_equal_blocks_are_twins():
    assert passed_by(stack(Block(), Block(), Block()), torch.ones(1, 3)) == ["2", "3"]


@pytest.mark.parametrize(
    "build, twins",
    [
        (lambda: resnet20(width=4), ["layer1.1", "layer1.2", "layer2.2", "layer3.2"]),
        (lambda: vit_small(image=8, patch=4, dim=12, depth=3, heads=2), ["blocks.1", "blocks.2"]),
    ],
)
def test_real_networks_repeat(build: Callable[[], nn.Module], twins: list[str]):
    assert set(twins) <= set(passed_by(build(), torch.zeros(1, 3, 8, 8)))


def test_a_block_that_holds_a_size_is_nobodys_twin():
    model = stack(Block(), Block(), Block(12))
    assert passed_by(model, torch.ones(1, 3)) == ["2"]
    sites = obc.trace(model, torch.ones(1, 3))
    # The number follows its site; left at 12 the narrower block would fail.
    assert sites["3.up"].attributes == ("3.width",)
    assert sites["2.up"].attributes == ()


def test_blocks_that_do_not_hand_on_their_channels_all_run():
    layers = [nn.Linear(6, 6) for _ in range(3)]
    assert passed_by(nn.Sequential(*layers), torch.ones(1, 6)) == []


@pytest.mark.slow
@pytest.mark.parametrize("case", parameters(*SMALL))
def test_the_same_sites_as_with_every_block_tried(case: Case, monkeypatch: pytest.MonkeyPatch):
    model, example = case.model(), case.example()
    found = obc.trace(model, example)
    # `obc.trace` is the function, so the module is asked for by its full name.
    monkeypatch.setattr(sys.modules["obc.tracing.trial"], "repeats", lambda *_: [])
    every = obc.trace(model, example)
    assert list(found) == list(every)
    for a, b in zip(found, every, strict=True):
        for mine, other in zip(a.members, b.members, strict=True):
            assert torch.equal(mine.index, other.index)
    assert found.frozen == every.frozen


class Ghost(nn.Module):
    """Half of the channels is made from the other, so that their halves are tied."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(6, 3, 1), nn.Conv1d(3, 3, 3, padding=1, groups=3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return x + torch.cat((y, self.second(y)), 1)


def test_a_twin_that_ties_the_channels_of_another_trunk_is_not_passed_by():
    stems = (nn.Conv1d(3, 6, 1), nn.Conv1d(6, 6, 1), nn.Conv1d(6, 2, 1))
    model = nn.Sequential(stems[0], Ghost(), nn.ReLU(), stems[1], Ghost(), nn.ReLU(), stems[2])
    sites = obc.trace(model, torch.rand(1, 3, 5))
    assert [(s.name, s.size) for s in sites] == [("0", 3), ("3", 3)]
    assert all(f.reason == "model output" for f in sites.frozen)
