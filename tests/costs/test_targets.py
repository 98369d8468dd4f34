"""The grammar of targets, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import obc
from obc.costs.targets import TOLERANCE, Target, parse, parse_all


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("macs=2.1x", obc.MACs(speedup=2.1)),
        ("macs=50%", obc.MACs(keep=0.5)),
        ("MACs = 2X", obc.MACs(speedup=2)),
        ("params=50%", obc.Params(keep=0.5)),
        ("channels=70%", obc.Channels(keep=0.7)),
        ("latency=1.5x", obc.Latency(speedup=1.5)),
        ("memory=50%", obc.Memory(keep=0.5)),
        ("macs=1x", obc.MACs(speedup=1)),
    ],
)
def test_text_and_class_are_the_same(text: str, target: Target) -> None:
    assert parse(text) == target
    assert parse(str(target)) == target
    assert parse(target) is target


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("macs", "looks like 'macs=2.1x'"),
        ("macs=2", "looks like"),
        ("macs=x", "looks like"),
        ("macs=-2x", "looks like"),
        ("macs=0.5x", "a speed-up is 1 or more, not 0.5"),
        ("macs=0%", "above 0 and at most 1"),
        ("macs=120%", "above 0 and at most 1"),
        ("mac=2x", "no target named 'mac'; did you mean 'macs'"),
        (2.0, "looks like"),
        (None, "looks like"),
    ],
)
def test_what_is_refused(text: Any, why: str) -> None:
    with pytest.raises(obc.ObcError, match=why):
        parse(text)


@pytest.mark.parametrize("given_", [{}, {"speedup": 2, "keep": 0.5}, {"speedup": float("inf")}])
def test_a_class_takes_one_number(given_: dict[str, float]) -> None:
    with pytest.raises(obc.ObcError, match="MACs"):
        obc.MACs(**given_)


def test_a_list_has_one_unit() -> None:
    assert parse_all(["macs=2x", "macs=30%"]) == [obc.MACs(speedup=2), obc.MACs(keep=0.3)]
    with pytest.raises(obc.ObcError, match="one unit"):
        parse_all(["macs=2x", "params=50%"])
    with pytest.raises(obc.ObcError, match="empty"):
        parse_all([])


@given(st.integers(1, 10**9), st.integers(1, 10**9), st.booleans())
def test_the_target_that_is_offered_is_met_by_the_value_it_was_made_for(
    a: int, b: int, share: bool
) -> None:
    value, before = min(a, b), max(a, b)
    if value * 100 < before:  # a few digits do not name a share this small
        return
    kind = obc.MACs(keep=0.5) if share else obc.MACs(speedup=2)
    limit = parse(kind.like(before, value)).limit(before)
    assert value <= limit * (1 + 1e-12)
    assert limit <= value * TOLERANCE
