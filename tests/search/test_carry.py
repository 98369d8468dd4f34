"""Carried evidence against a sum that remembers every row and what has gone since."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from obc.search.carry import HALF, Carried


class Remembering:
    """Every step's sums with the rows behind them; weights are worked out anew each time."""

    def __init__(self, half: float = HALF) -> None:
        self.half = half
        self.steps: list[tuple[dict[int, float], int, float]] = []  # by channel, rows, gone then
        self.gone = 0.0

    def scores(self, channels: list[int], found: Tensor, rows: int, all_rows: int) -> Tensor:
        self.steps.append((dict(zip(channels, found.tolist(), strict=True)), rows, self.gone))
        ages = [0.5 ** ((self.gone - then) / self.half) for _, _, then in self.steps]
        weight = sum(age * n for age, (_, n, _) in zip(ages, self.steps, strict=True))
        return torch.tensor(
            [
                sum(age * own[c] for age, (own, _, _) in zip(ages, self.steps, strict=True))
                * (all_rows / weight)
                for c in channels
            ],
            dtype=torch.float64,
        )


def walk(steps: list[int], share: float, rows: int, reference: Remembering) -> bool:
    """Whether both say the same in every step; `steps` are how many channels go after each."""
    random = torch.Generator().manual_seed(len(steps))
    every = 40
    channels, carried = list(range(every)), Carried(share=share, rows=rows)
    same = True
    for count in steps:
        fresh = carried.fresh
        found = torch.rand(len(channels), generator=random, dtype=torch.float64) * fresh
        ours = carried.joined({"a": found, "b": found}, fresh)
        wanted = reference.scores(channels, found, fresh, rows)
        same &= all(torch.allclose(own, wanted, rtol=1e-9) for own in ours.values())
        left = torch.randperm(len(channels), generator=random)[count:].sort().values
        channels = [channels[i] for i in left]
        carried.follow({"a": left, "b": left}, count / every)
        reference.gone += count / every
    return same


@given(
    steps=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    share=st.floats(0.05, 0.95),
    rows=st.integers(1, 60),
)
def test_a_running_sum_is_the_sum_over_all_steps(steps: list[int], share: float, rows: int) -> None:
    assert walk(steps, share, rows, Remembering())


def test_the_reference_would_notice_another_memory() -> None:
    assert not walk([1, 1, 1], 0.5, 10, Remembering(half=2 * HALF))


@pytest.mark.parametrize(("share", "fresh"), [(0.75, 12), (0.8, 10), (0.9, 5), (0.999, 1)])
def test_later_steps_take_fewer_rows_until_all_is_forgotten(share: float, fresh: int) -> None:
    carried = Carried(share=share, rows=50)
    assert carried.fresh == 50
    carried.joined({"a": torch.ones(3)}, 50)
    assert carried.fresh == fresh
    carried.forget()
    assert carried.fresh == 50


def test_where_there_are_fewer_batches_than_rows_their_number_counts() -> None:
    carried = Carried(share=0.5, rows=50)
    assert carried.joined({"a": torch.full((2,), 3.0)}, 8)["a"].tolist() == [3.0, 3.0]
    assert carried.fresh == 4


def test_without_a_share_nothing_is_kept() -> None:
    carried = Carried(share=0.0, rows=5)
    for _ in range(2):
        assert carried.joined({"a": torch.ones(2)}, 5)["a"].tolist() == [1.0, 1.0]
    assert (carried.sums, carried.fresh) == ({}, 5)
