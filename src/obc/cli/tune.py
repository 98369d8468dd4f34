"""`obc tune`: train by a recipe, after pruning or from nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from obc.cli import recording
from obc.cli.arguments import ELSEWHERE, Model, RecipeData, TaskName, Teacher
from obc.cli.arguments import Recipe as RecipeOption
from obc.cli.inputs import model_of, task_of
from obc.cli.job import Job
from obc.cli.output import Output, Result
from obc.disk.claim import claimed
from obc.errors import ObcError
from obc.files.reference import reference
from obc.reporting import fill
from obc.tasks.task import Task
from obc.tuning.recipe import Recipe


def tune(
    out: Output,
    model: Model,
    recipe: RecipeOption,
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="A folder for this run; MODEL/tuned if not given."),
    ] = None,
    data: RecipeData = None,
    task: TaskName = None,
    teacher: Teacher = None,
) -> Result:
    """Tune a pruned model by a recipe, or train a fresh one; C and D are merged at the end.

    Example: obc tune runs/half --recipe resnet20-digits

    Example: obc tune resnet20 --recipe resnet20-digits --out runs/dense
    """
    chosen, purpose = recipe_and_task(recipe, data, task, model)
    net = model_of(model, purpose)
    if folder is None and not Path(model).is_dir():
        raise ObcError(f"'{model}' is no folder, so say where the tuned model goes: --out DIR")
    place = folder if folder is not None else Path(model) / "tuned"
    facts = {"command": "tune", "model": model, "recipe": recipe, "data": data, "task": task}
    with claimed(place, {**facts, "teacher": teacher}, advice=ELSEWHERE):
        job = Job(out, net, purpose, place)
        title = f"{reference(net)} on {purpose.name}: tuned"
        record = recording.begin(title, net, purpose, chosen.seed)
        before = job.measure("before")
        asked = None
        if teacher is not None:
            named = not Path(teacher).is_dir()
            asked = model_of(teacher, purpose, pretrained=named)
        tuned = job.tune("tuning", chosen, teacher=asked)
        record.tuning = [fill.tuning("tuned", tuned)]
        return job.finish(record, [before, job.save(job.measure("tuned"))])


def recipe_and_task(
    name: str, data: str | None, task: str | None, model: str | None
) -> tuple[Recipe, Task]:
    """A recipe, and the task that the command or else the recipe names."""
    recipe = Recipe.load(name)
    if data is None and task is None:
        data, task = recipe.data, recipe.task
    if data is None and task is None:
        raise ObcError(f"{name} names no data; --data does, or --task")
    return recipe, task_of(data, task, model or recipe.model)
