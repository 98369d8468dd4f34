"""The progress bar tells what it should on a terminal, and nothing elsewhere."""

from __future__ import annotations

import io
import time
from typing import Any

import pytest
from rich.console import Console

from obc.tuning import progress


def told(monkeypatch: pytest.MonkeyPatch, terminal: bool, show: bool = True) -> str:
    file = io.StringIO()

    def console(**options: Any) -> Console:
        return Console(file=file, force_terminal=terminal, width=120)

    monkeypatch.setattr(progress, "Console", console)
    with progress.Bar(10, 3, show) as bar:
        bar.quality = "top-1 12.50%"
        for _ in range(4):
            bar.step(0.25, 64)
            time.sleep(0.01)
        assert bar.rate > 0
    return file.getvalue()


def test_loss_metric_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(monkeypatch, terminal=True)
    for part in ("tuning", "7/10", "loss 0.2500", "top-1 12.50%", "samples/s", "0:0"):
        assert part in found


def test_silence_off_a_terminal_and_in_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, terminal=False) == ""
    assert told(monkeypatch, terminal=True, show=False) == ""
