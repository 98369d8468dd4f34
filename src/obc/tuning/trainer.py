"""`obc.finetune`: train by a recipe on one process or many, and go on wherever it was stopped."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from obc.errors import ObcError
from obc.running import randomness as seeds
from obc.tuning.evaluate import Score
from obc.tuning.recipe import Recipe

Callback = Callable[[nn.Module], None]


@dataclass(frozen=True)
class Tuned:
    """What came of a run: the last epoch's score, the best one's, and every epoch's numbers."""

    score: Score | None
    best: Score | None
    history: list[dict[str, float]]
    folder: Path


def finetune(
    model: nn.Module,
    train: Any,
    val: Any,
    recipe: Recipe,
    teacher: nn.Module | None = None,
    out: str | os.PathLike[str] = "runs/x",
    resume: bool = True,
    *,
    callback: Callback | None = None,
    tracker: Any = "tensorboard",
) -> Tuned:
    """Tune a model in place by a recipe; factors of an equivalent pruning are merged at the end.

    `train` and `val` are images of `obc.data`, or batches of (inputs, labels) that can be gone
    through more than once; `val` may be None. `teacher` is the unpruned model, for recipes that
    distill. In `out` are kept `last.safetensors` (all that is needed to go on), `best.safetensors`
    and `model.safetensors` (plain weights), `result.json` and what the tracker writes. Called
    again after a crash, with the same model and recipe, it goes on from the last checkpoint to the
    very same weights. `callback` gets the model in training after each backward pass. Under
    `torchrun` or `accelerate launch` all processes share the work.

    On any error the model is as it was before; what was reached is in `out`.

    >>> import tempfile, torch
    >>> batches = [(torch.randn(8, 4), torch.randint(0, 2, (8,))) for _ in range(5)]
    >>> recipe = Recipe(lr=0.1, epochs=3, batch_size=8, schedule="cosine")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tuned = finetune(nn.Linear(4, 2), batches, batches, recipe, out=f"{folder}/run")
    >>> len(tuned.history)
    3
    """
    _check(recipe, teacher)
    # Only here: accelerate and kornia take as long to import as torch itself.
    from obc.tuning.processes import Processes
    from obc.tuning.run import Run

    out = Path(out)
    with seeds.kept(), Processes(recipe.amp, out, tracker) as processes:
        run = Run(model, train, val, recipe, teacher, out, resume, callback, processes)
        run.train()
        scores = run.finish()
    best = max(scores, key=lambda s: s.top1, default=None)
    return Tuned(scores[-1] if scores else None, best, run.history, out)


def _check(recipe: Recipe, teacher: nn.Module | None) -> None:
    if recipe.distill and teacher is None:
        raise ObcError(f"distill: {recipe.distill} needs a teacher; pass the unpruned model")
    if teacher is not None and not recipe.distill:
        raise ObcError("there is a teacher, but the recipe's distill is 0")
