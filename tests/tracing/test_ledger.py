"""Ties of whole ranges are kept as links between them, and come to the same classes as pairs."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from obc.tracing.ledger import Ledger, Place
from obc.tracing.solve import base_classes, components

HERE = Place("", "", "")


def by_pairs(size: int, ties: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The same ties one position at a time."""
    pairs = [(a.reshape(-1).clone(), b.reshape(-1).clone()) for a, b in ties]
    return components(torch.arange(size), pairs)


def test_ranges_in_any_order() -> None:
    for seed in range(20):
        draw = random.Random(seed)
        ledger = Ledger()
        ranges = [ledger.fresh(6) for _ in range(8)]
        joined = torch.cat([ranges[0][:3], ranges[5][3:]])
        shapes = [(6,), (1, 6), (2, 3)]
        ties = []
        for _ in range(5):
            shape = draw.choice(shapes)
            a, b = (draw.choice([*ranges, joined]).view(shape) for _ in range(2))
            ties.append((a, b) if draw.random() < 0.7 else (a.flip(-1), b))
            ledger.tie(*ties[-1], HERE)
        assert torch.equal(base_classes(ledger), by_pairs(ledger.size, ties)), seed


def test_only_whole_ranges_in_order_are_links() -> None:
    ledger = Ledger()
    a, b = ledger.fresh(6), ledger.fresh(6)
    assert ledger.start(b) == 6
    assert ledger.start(b.view(2, 3)) == 6
    assert ledger.start(b.view(2, 3).t()) is None
    assert ledger.start(b[:3]) is None
    assert ledger.start(b.clone()) is None
    ledger.tie(a, b.flip(0), HERE)
    assert len(list(ledger.ties())) == 1


def test_channels_that_meet_several_vectors() -> None:
    """Those after the first are linked to the first; what holds a fixed position is not."""
    ledger = Ledger()
    x, weight, bias = ledger.fresh(4), ledger.fresh(2), ledger.fresh(2)
    part = x[1:3].clone()
    ledger.tie(part, weight, HERE)
    ledger.tie(part, bias, HERE)
    assert len(list(ledger.ties())) == 1
    assert base_classes(ledger).tolist() == [0, 1, 2, 3, 1, 2, 1, 2]
    padded = torch.tensor([0, -1])
    ledger.tie(padded, weight, HERE)
    ledger.tie(padded, bias, HERE)
    assert len(list(ledger.ties())) == 3


def test_sides_of_different_sizes() -> None:
    """A single id that is repeated over many is no range of theirs."""
    ledger = Ledger()
    many, one = ledger.fresh(3), ledger.fresh(1)
    part = many.clone()
    ledger.tie(part, one, HERE)
    ledger.tie(part, ledger.fresh(3), HERE)
    assert base_classes(ledger).tolist() == [0] * 7


def test_marked_ranges_and_single_ids() -> None:
    ledger = Ledger()
    first, second, third = (ledger.fresh(n) for n in (3, 4, 2))
    for ids in (second, second.view(2, 2), torch.tensor([0, -1]), third.flip(0)):
        ledger.mark("in", ids)
    assert ledger.marked("in").tolist() == [True, False, False] + [True] * 6
    assert not ledger.marked("out").any()
    ledger.mark("out", first)
    assert ledger.marked("out").tolist() == [True] * 3 + [False] * 6
