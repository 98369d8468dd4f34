"""A task of one's own in two real processes: what one process would do at the same batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.tasks.own import EXAMPLES
from tests.tuning.small import same
from tests.tuning.test_processes import start

SCRIPT = """
import json, os, sys, torch, obc
from safetensors.torch import save_file
from torch.utils.data import DataLoader
sys.path.insert(0, "{examples}")
import task_regression
torch.set_num_threads(1)
rank, folder, kind = int(os.environ.get("RANK", 0)), sys.argv[1], sys.argv[2]
torch.manual_seed(0)
model, task = task_regression.net(), task_regression.task()
if kind == "loader":  # batches that somebody else makes: one for each process makes a step
    world = int(os.environ.get("WORLD_SIZE", 1))
    loader = DataLoader(task.train.data, batch_size=32 // world, shuffle=True, drop_last=True)
    task = type(task)(loader, task.test.data, name=task.name)
recipe = obc.Recipe(lr=0.02, epochs=3, batch_size=32)
tuned = obc.finetune(model, task, recipe, out=folder + "/run", tracker=None)
save_file(model.state_dict(), folder + "/" + str(rank) + ".safetensors")
told = {{"rmse": [h["rmse"] for h in tuned.history], "alone": task.evaluate(model).rmse}}
with open(folder + "/" + str(rank) + ".json", "w") as file:
    json.dump(told, file)
"""


def run(
    folder: Path, kind: str, world: int
) -> tuple[list[dict[str, torch.Tensor]], list[dict[str, Any]]]:
    """Weights and errors of each process."""
    script = SCRIPT.format(examples=EXAMPLES)
    assert [p.wait(timeout=120) for p in start(folder, kind, world, script)] == [0] * world
    ranks = range(world)
    told = [json.loads((folder / f"{rank}.json").read_text()) for rank in ranks]
    return [load_file(folder / f"{rank}.safetensors") for rank in ranks], told


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["samples", "loader"])
def test_two_processes_learn_what_one_does(kind: str, tmp_path: Path) -> None:
    (one,), (alone,) = run(tmp_path / "one", kind, 1)
    (first, second), told = run(tmp_path / "two", kind, 2)
    assert same(first, second), "both end with the same bits"
    assert told[0] == told[1]
    assert told[0]["rmse"][-1] == pytest.approx(told[0]["alone"], rel=1e-6), "shares add up"
    assert alone["rmse"][-1] < 0.95 * alone["rmse"][0], "there is something to follow"
    for name, weight in one.items():
        torch.testing.assert_close(first[name], weight, rtol=1e-3, atol=1e-5)
    assert told[0]["rmse"] == pytest.approx(alone["rmse"], rel=1e-4)
