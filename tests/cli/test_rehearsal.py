"""`obc run --dry-run`: everything in small, and what the whole would cost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from obc.cli.rehearsal import activations
from obc.tasks.task import Task
from tests.cli.running import done, run

RECIPE = """
model = "resnet20,width=4"
data = "{data}"
lr = 0.05
epochs = 3
batch_size = 64
distill = 0.5
amp = "fp16"
[prune]
target = "{target}"
rows = 5
batch_size = 32
step = 0.2
recalibrate = 32
[sparse]
epochs = 2
lr = 0.01
strength = 0.0005
"""


def recipe(folder: Path, data: str = "cifar10", target: str = "macs=2x") -> Path:
    path = folder / "recipe.toml"
    path.write_text(RECIPE.format(data=data, target=target))
    return path


@pytest.mark.slow
def test_without_the_data_at_hand(tmp_path: Path) -> None:
    found = done("run", recipe(tmp_path), "--dry-run")
    assert found["data checked"] is False
    assert any("data were not checked" in note for note in found["notes"])
    stages = found["stages"]
    assert stages["tuning"]["steps"] == 3 * (50_000 // 64)
    assert stages["sparse learning"]["steps"] == 2 * (50_000 // 64)
    assert stages["planning"]["samples each"] == 32 and stages["planning"]["steps"] % 5 == 0
    assert stages["evaluation"]["samples each"] == 10_000
    for stage in stages.values():
        seconds = stage["steps"] * stage["samples each"] / stage["samples per second"]
        assert stage["hours"] == pytest.approx(seconds / 3600) and seconds > 0
    assert found["hours"] == pytest.approx(sum(s["hours"] for s in stages.values()))
    assert found["macs"][0] / found["macs"][1] >= 1.99 and found["memory"] > 0
    assert [file.name for file in tmp_path.iterdir()] == ["recipe.toml"]


@pytest.mark.slow
def test_data_at_hand_are_read(tmp_path: Path) -> None:
    found = done("run", recipe(tmp_path, "digits"), "--dry-run")
    assert found["data checked"] is True
    assert found["stages"]["tuning"]["steps"] == 3 * (1437 // 64)


def test_mistakes_are_found_before_the_night(tmp_path: Path) -> None:
    out = run("run", recipe(tmp_path, target="macs=900x"), "--dry-run")
    assert out.exit_code == 1 and "macs" in out.output
    out = run("run", recipe(tmp_path), "--dry-run", "--data", f"cifar10:{tmp_path / 'nowhere'}")
    assert out.exit_code == 1 and "nowhere" in out.output
    out = run("run", recipe(tmp_path, "digits"), "--model", tmp_path, "--dry-run")
    assert out.exit_code == 1 and "holds no model" in out.output


class Line(Task):
    def loss(self, model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(model(batch), torch.zeros(len(batch), 2))


@pytest.mark.parametrize("count", [3, 6])
def test_what_autograd_keeps(count: int) -> None:
    """The input, what ReLU puts out, and both sides of the loss; no weight."""
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    kept = activations(net, Line([torch.zeros(1, 4)]), torch.randn(count, 4))
    assert kept == 4 * count * (4 + 8 + 2 + 2)
