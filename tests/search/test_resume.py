"""Runs that were killed go on, and end with the same plan to the byte."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import obc
from tests.search.nets import Residual, batches, loss

X = torch.zeros(1, 1, 8, 8)
SCRIPT = """
import sys, time, torch, obc
from torch.nn import functional
from obc.models import resnet20
torch.set_num_threads(1)
torch.manual_seed(0)
net = resnet20(in_channels=1, width=4).eval()
data = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(torch.randn(96, 1, 8, 8), torch.randint(0, 10, (96,))),
    batch_size=8, shuffle=True,
)
def loss(model, batch):
    time.sleep(float(sys.argv[3]))
    return functional.cross_entropy(model(batch[0]), batch[1])
plans = obc.plan(
    net, torch.zeros(1, 1, 8, 8), data, loss, target=["macs=1.5x", "macs=2.5x"], step=0.03,
    rows=5, resume=sys.argv[1] or None, carry=float(sys.argv[4]), rank="score/cost",
)
for i, plan in enumerate(plans):
    plan.save(f"{sys.argv[2]}/{i}.json")
"""


def start(folder: Path, resume: Path | str, out: Path, pause: float, carry: float) -> Any:
    script = folder / "run.py"
    script.write_text(SCRIPT)
    out.mkdir(exist_ok=True)
    words = [sys.executable, str(script), str(resume), str(out), str(pause), str(carry)]
    return subprocess.Popen(words)


@pytest.mark.parametrize("carry", [pytest.param(0.0, marks=pytest.mark.slow), 0.6])
def test_a_run_that_is_killed_ends_with_the_same_plans(tmp_path: Path, carry: float) -> None:
    resume = tmp_path / "run"
    whole = start(tmp_path, "", tmp_path / "whole", 0, carry)
    assert whole.wait(timeout=120) == 0
    steps = 0
    for after in (3, 14):  # the second time it has gone past the first target
        killed = start(tmp_path, resume, tmp_path / "killed", 0.005, carry)
        while steps < after:
            time.sleep(0.005)
            assert killed.poll() is None, "it ended before it was killed"
            if (resume / "run.json").exists():
                steps = len(json.loads((resume / "run.json").read_text())["history"])
        os.kill(killed.pid, signal.SIGKILL)
        assert killed.wait() == -signal.SIGKILL
    last = start(tmp_path, resume, tmp_path / "resumed", 0, carry)
    assert last.wait(timeout=120) == 0
    assert not (tmp_path / "killed" / "0.json").exists()
    for i in range(2):
        expected = (tmp_path / "whole" / f"{i}.json").read_bytes()
        assert (tmp_path / "resumed" / f"{i}.json").read_bytes() == expected
    assert [p.name for p in resume.iterdir()] == ["run.json"]


class Stopped(Exception):
    """Raised by a loss to end a run."""


def stopping(after: int) -> Any:
    calls = [0]

    def stop(model: nn.Module, batch: Any) -> torch.Tensor:
        calls[0] += 1
        if calls[0] > after:
            raise Stopped
        return loss(model, batch)

    return stop


def run(folder: Path, model: nn.Module, own: Any = loss, **changes: Any) -> obc.Plan:
    torch.manual_seed(5)
    settings: Any = {"target": "macs=2x", "step": 0.04, "rows": 3, **changes}
    return obc.plan(model, X, batches(8), own, resume=folder, **settings)


def test_a_run_that_failed_goes_on(tmp_path: Path) -> None:
    model = Residual().eval()
    with pytest.raises(obc.ObcError, match="batch"):
        run(tmp_path / "a", model, stopping(13))
    left = [10**6]

    def counted(model: nn.Module, batch: Any) -> torch.Tensor:
        left[0] -= 1
        return loss(model, batch)

    resumed = run(tmp_path / "a", model, counted)
    assert resumed.model_dump_json() == run(tmp_path / "b", model).model_dump_json()
    assert 10**6 - left[0] == 3 * (len(resumed.history) - 4), "four steps were not run again"


def test_a_run_that_is_done_is_not_run_again(tmp_path: Path) -> None:
    model = Residual().eval()
    first = run(tmp_path, model)
    assert run(tmp_path, model, stopping(0)).model_dump_json() == first.model_dump_json()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"step": 0.05}, "its step is 0.04, not 0.05"),
        ({"seed": 1}, "its seed is 0, not 1"),
        ({"target": "macs=3x"}, "its targets is 'macs=2x', not 'macs=3x'"),
        ({"criterion": "taylor"}, "its criterion is 'jacobian', not 'taylor'"),
        ({"block": "group"}, "its criterion.block is None, not 'group'"),
        ({"ignore": "stem"}, "its ignore is '', not 'stem'"),
        ({"min_channels": {"stem": 3}}, "its min_channels is 1, not "),
    ],
)
def test_the_folder_of_another_run_is_refused(
    tmp_path: Path, changes: dict[str, Any], text: str
) -> None:
    model = Residual().eval()
    run(tmp_path, model)
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(obc.ObcError, match=f"holds another run: {text}.*; choose another folder"):
        run(tmp_path, model, **changes)
    assert (tmp_path / "run.json").read_bytes() == before


def test_the_folder_of_another_model_is_refused(tmp_path: Path) -> None:
    model = Residual().eval()
    run(tmp_path, model)
    model.fc.bias.data[0] += 1
    with pytest.raises(obc.ObcError, match="holds another run: its model is"):
        run(tmp_path, model)


@pytest.mark.parametrize("text", ["", "{}", '{"format": "obc.run", "version": 9, "run": {}}', "[1"])
def test_a_broken_state_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(obc.ObcError, match=r"run\.json is not a run this version can go on with"):
        run(tmp_path, Residual().eval())
    assert (tmp_path / "run.json").read_text() == text


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(obc.ObcError, match="no folder that can be written to"):
        run(tmp_path / "file", Residual().eval())


def test_chance_is_the_same_after_a_restart(tmp_path: Path) -> None:
    model = Residual().eval()
    first = obc.plan(model, X, target="macs=2x", criterion="random", resume=tmp_path)
    again = obc.plan(model, X, target="macs=2x", criterion="random", resume=tmp_path)
    assert first == again
    assert first != obc.plan(model, X, target="macs=2x", criterion="random", seed=1)
