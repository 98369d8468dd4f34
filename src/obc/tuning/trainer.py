"""`obc.finetune`: train by a recipe on one process or many, and go on wherever it was stopped."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from obc.disk.location import location
from obc.errors import ObcError
from obc.running import randomness as seeds
from obc.running.checks import check_flag, check_function
from obc.running.modules import checked_module
from obc.tasks.evaluate import task_of
from obc.tasks.evaluation import Evaluation, best_of
from obc.tuning.recipe import Recipe

Callback = Callable[[nn.Module], None]


@dataclass(frozen=True)
class Tuned:
    """What came of a run: the last epoch's evaluation, the best one, every epoch's numbers."""

    last: Evaluation | None
    best: Evaluation | None
    history: list[dict[str, float]]
    folder: Path | None


def history_key(metric: str) -> str:
    """What a metric is called in a history, where "loss" is that of training."""
    return "val_loss" if metric == "loss" else metric


def finetune(
    model: nn.Module,
    train: Any,
    val: Any = None,
    recipe: Recipe | None = None,
    teacher: nn.Module | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = True,
    *,
    callback: Callback | None = None,
    tracker: Any = "tensorboard",
) -> Tuned:
    """Tune a model in place by a recipe; factors of an equivalent pruning are merged at the end.

    `finetune(model, task, recipe)`, or `finetune(model, train, val, recipe)` for a classifier.
    Under `torchrun` or `accelerate launch` all processes share the work. On any error the model is
    as it was before; what was reached is in `out`.

    Args:
        model: the model, which keeps its class; a copy of it learns.
        train: a task, or training data: images of `obc.data`, or batches of (inputs, labels) that
            can be gone through more than once.
        val: the recipe if there is a task, or data to evaluate on after each epoch, or None.
        recipe: every number of the run.
        teacher: the unpruned model, for recipes that distill.
        out: a folder to keep the run in: `last.safetensors` (all that is needed to go on),
            `best.safetensors` and `model.safetensors` (plain weights), `result.json` and what the
            tracker writes. Called again after a crash, with the same model and recipe, it goes on
            from the last checkpoint to the very same weights. Without a folder nothing is written.
        resume: whether to go on with a run that is in the folder, or to refuse it.
        callback: gets the model in training after each backward pass.
        tracker: what accelerate calls a tracker, or None.

    >>> import torch
    >>> batches = [(torch.randn(8, 4), torch.randint(0, 2, (8,))) for _ in range(5)]
    >>> recipe = Recipe(lr=0.1, epochs=3, batch_size=8, schedule="cosine")
    >>> tuned = finetune(nn.Linear(4, 2), batches, batches, recipe)
    >>> len(tuned.history), tuned.last.metric.name
    (3, 'top1')
    """
    if isinstance(val, Recipe):
        val, recipe = None, val
    if not isinstance(recipe, Recipe):
        raise ObcError("say by which recipe: finetune(model, task, recipe)")
    checked_module(model)
    check_flag("resume", resume)
    if not any(p.requires_grad for p in model.parameters()):
        raise ObcError("there is nothing to tune: no parameter of the model requires a gradient")
    if callback is not None:
        check_function("callback", callback, batch=False)
    task = task_of(train, val)
    _check(recipe, teacher)
    # Only here: accelerate takes as long to import as torch itself.
    from obc.tuning.processes import Processes
    from obc.tuning.run import Run

    folder = location(out, "out") if out is not None else None
    with seeds.kept(), Processes(recipe.amp, folder, tracker) as processes:
        run = Run(model, task, recipe, teacher, folder, resume, callback, processes)
        run.train()
        run.finish()
    evaluations = run.evaluations()
    last = evaluations[-1] if evaluations else None
    return Tuned(last, best_of(evaluations), run.history, folder)


def _check(recipe: Recipe, teacher: nn.Module | None) -> None:
    if recipe.distill and teacher is None:
        raise ObcError(f"distill: {recipe.distill} needs a teacher; pass the unpruned model")
    if teacher is not None and not recipe.distill:
        raise ObcError("there is a teacher, but the recipe's distill is 0")
