"""Latency in a runtime, asked for by an option or in the target, and shown in the report."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import obc
from obc.costs import targets
from obc.costs.cost_model import costs_of
from obc.reporting.record import Record
from obc.tracing.tracer import Tracing
from tests.cli.running import done, run


class Clock:
    """As many seconds as there are MACs, instead of a few dozen measurements."""

    def __init__(self, tracing: Tracing, runtime: str) -> None:
        self.macs = costs_of(tracing).macs
        self.example = tracing.example
        self.whole = self.seconds([site.size for site in tracing.sites])

    def seconds(self, counts: list[int]) -> float:
        return float(self.macs(torch.tensor([counts])))

    def of(self, cut: nn.Module) -> float:
        return float(obc.cost(cut, self.example).macs)


@pytest.mark.parametrize(
    "asked", [("latency=1.5x", "--runtime", "torch"), ("latency[torch]=1.5x",)]
)
def test_the_report_has_the_milliseconds_of_the_runtime(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: tuple[str, ...]
) -> None:
    monkeypatch.setattr(targets, "Candidates", Clock)
    arguments = ("prune", dense, "--data", "digits", "--criterion", "l2", "--step", 0.1)
    done(*arguments, "--no-recalibrate", "--target", *asked, "--out", tmp_path / "quick")
    figures = {f.name: f for f in Record.load(tmp_path / "quick").figures}
    assert {"one example", "in torch"} <= set(figures)
    assert figures["in torch"].unit == "ms" and "before" in figures["in torch"].note
    assert "in torch" in (tmp_path / "quick" / "report.html").read_text()


def test_a_runtime_is_for_latency(dense: Path, tmp_path: Path) -> None:
    arguments = ("prune", dense, "--data", "digits", "--target", "macs=2x")
    result = run(*arguments, "--runtime", "torch", "--out", tmp_path / "none")
    assert result.exit_code and "a runtime is for latency=…" in result.output
