"""Axes: every value has its place, and ticks are few, round and in order."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from obc.reporting.axes import Axis, fitting

VALUES = st.lists(st.floats(-1e9, 1e9).filter(lambda v: v == 0 or abs(v) > 1e-9), min_size=1)


@given(VALUES, st.booleans(), st.booleans())
def test_an_axis_has_room_for_all_values(values: list[float], zero: bool, log: bool) -> None:
    axis = fitting(values, 200, 0, zero=zero, log=log)
    slack = 1e-6 * max(map(abs, (axis.low, axis.high)))
    assert axis.low < axis.high
    assert axis.low - slack <= min(values) and max(values) <= axis.high + slack
    places = [axis.at(v) for v in sorted(values)]
    assert all(0 <= p <= 200 for p in places)
    assert all(a >= b for a, b in pairwise(places))


@given(VALUES, st.booleans())
def test_ticks_are_few_and_in_order(values: list[float], log: bool) -> None:
    axis = fitting(values, 0, 200, log=log)
    ticks = axis.ticks()
    assert 2 <= len(ticks) <= 8
    assert all(a < b for (a, _), (b, _) in pairwise(ticks))
    assert len({text for _, text in ticks}) == len(ticks)


def test_whole_ticks_are_whole() -> None:
    assert [text for _, text in Axis(1, 3, 0, 1).ticks(whole=True)] == ["1", "2", "3"]
    assert [text for _, text in Axis(1, 3, 0, 1).ticks()] != ["1", "2", "3"]


def test_a_value_beyond_the_ends_stays_on_the_paper() -> None:
    axis = Axis(1, 100, 0, 10, log=True)
    assert axis.at(-5) == 0 and axis.at(1e9) == 10
