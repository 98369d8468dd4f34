"""A tenth of the sweep in every run of the slow tests, another one with each commit."""

from __future__ import annotations

import subprocess

import pytest

from tests.sweep.families import SWEEP, Family
from tests.sweep.judge import judge


def tenth() -> list[Family]:
    """Those that the commit's hash chooses; the first tenth outside a checkout."""
    command = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return SWEEP[int(commit or "0", 16) % 10 :: 10]


@pytest.mark.slow
@pytest.mark.parametrize("family", tenth(), ids=lambda family: family.kind)
def test_a_family_is_right_or_refused_by_the_trace(family: Family) -> None:
    pytest.importorskip("transformers")
    line = judge(family)
    assert line.verdict == "right" or line.verdict.startswith("refused: "), line
