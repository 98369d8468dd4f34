"""The folder of a run: its files, and what must be the same for a run to go on in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from obc.disk import claim, digest
from obc.errors import ObcError
from obc.tasks.task import Task
from obc.tuning.recipe import Recipe

ABOUT, LAST, BEST = "run.json", "last.safetensors", "best.safetensors"
FINAL, RESULT = "model.safetensors", "result.json"


def describe(
    recipe: Recipe, weights: Mapping[str, Tensor], task: Task, teacher: bool, world: int
) -> dict[str, Any]:
    """All that must be the same for a run to go on where it stopped."""
    train = getattr(task, "train", None)
    data = train.described() if train is not None else {"steps": task.steps(recipe.batch_size)}
    return {
        "format": 2,
        **recipe.model_dump(mode="json"),
        "digest of the weights": digest.of_tensors(weights),
        "training data": data,
        "teacher": teacher,
        "processes": world,
    }


def claim_run(folder: Path, about: dict[str, Any], resume: bool) -> None:
    """Make a folder this run's, or see that it is; refuse that of another."""
    if not resume and (folder / ABOUT).is_file():
        raise ObcError(f"{folder} holds a run already; resume=True goes on with it")
    claim.claim(folder, about, ABOUT)
