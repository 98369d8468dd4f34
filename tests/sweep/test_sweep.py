"""The judge sees faults, and a tenth of the sweep is in every run of the slow tests."""

from __future__ import annotations

import copy
import json
import subprocess

import pytest
import torch
from torch import nn

import obc
from tests.cases import case
from tests.oracles import rolls
from tests.reference import random_kept, relative_error
from tests.sensitive import run, tensors
from tests.sweep import SWEEP
from tests.sweep.families import Family
from tests.sweep.judge import LIMIT, judge
from tests.sweep.masking import masked_outputs
from tests.vision import installed

NAMES = ("resnet20", "qkv_chunk", "glu_chunk", "densenet")


def tenth() -> list[Family]:
    """Those that the commit's hash chooses; the first tenth outside a checkout."""
    command = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return SWEEP[int(commit or "0", 16) % 10 :: 10]


@pytest.mark.slow
@pytest.mark.parametrize("family", tenth(), ids=repr)
def test_a_family_is_right_or_refused_by_the_trace(family: Family) -> None:
    if not installed(family.library):
        pytest.skip(f"{family.library} is not installed")
    line = judge(family)
    assert line.verdict in ("right", "nothing to prune") or line.verdict.startswith("refused: "), (
        line
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_judge_sees_each_weight_that_is_out_of_place(name: str) -> None:
    model, example = case(name).model(), case(name).example()
    sites = obc.trace(model, example)
    plan = obc.Plan.from_kept(sites, random_kept(sites))
    pruned = obc.apply(copy.deepcopy(model), plan, example=example)
    with torch.no_grad():
        expected = masked_outputs(model, sites, plan.kept, example)
        assert relative_error(expected, tensors(run(pruned, example))) < 1e-9
        for member in rolls(model, pruned, sites, plan, one_each=True):
            assert relative_error(expected, tensors(run(pruned, example))) > LIMIT, member


class Statistics(nn.Module):
    """A mean, a variance, a softmax and a norm over channels, each as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 12), nn.Linear(12, 3)
        self.norm = nn.LayerNorm(12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(x)
        y = y / (y.pow(2).mean(-1, keepdim=True) + y.var(-1, keepdim=True, correction=0)).sqrt()
        return self.down(self.norm(y) * y.softmax(-1))


def test_the_judge_takes_statistics_over_the_kept_channels() -> None:
    torch.manual_seed(0)
    model, x = Statistics().double(), torch.rand(2, 4, dtype=torch.float64)
    sites = obc.trace(model, x)
    plan = obc.Plan.from_kept(sites, {"up": [0, 2, 3, 5, 6, 7, 10]})
    with torch.no_grad():
        expected = masked_outputs(model, sites, plan.kept, x)
        pruned = obc.apply(copy.deepcopy(model), plan, example=x)
        assert relative_error(expected, [pruned(x)]) < 1e-9
        assert relative_error(expected, [model(x)]) > LIMIT


def test_the_page_holds_what_was_measured() -> None:
    sweep = pytest.importorskip("benchmarks.sweep")
    lines = json.loads((sweep.RESULTS / "sweep.json").read_text())["lines"]
    assert len(lines) >= 150
    for file, rows in ((sweep.PAGE, sweep.table(lines)), (sweep.README, [sweep.in_short(lines)])):
        text = file.read_text(encoding="utf-8")
        assert sweep.page(text, rows) == text
    assert {line["family"] for line in lines} >= {repr(f) for f in SWEEP}
    assert not [line for line in lines if line["verdict"].startswith("wrong")]
