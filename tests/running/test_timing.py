"""Other jobs on the machine do not count where a single thread does the work."""

from __future__ import annotations

import time

import pytest
import torch

from obc.running.timing import race


def pause() -> None:
    time.sleep(0.02)


@pytest.mark.parametrize(("threads", "counts"), [(1, False), (2, True)])
def test_waiting_counts_only_for_several_threads(
    threads: int, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    (times,) = race([pause], turns=3, seconds=0)
    assert len(times) == 3
    assert (min(times) >= 0.02) is counts


def test_the_seconds_to_measure_are_those_of_a_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the processor's clock a run that waits would be measured for ever."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    (times,) = race([pause], turns=1, seconds=0.05)
    assert len(times) <= 3
