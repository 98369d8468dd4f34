"""`obc run`: all of a recipe, each part of it resumable."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Annotated

import typer

from obc.cli import recording
from obc.cli.arguments import (
    ELSEWHERE,
    Folder,
    Pretrained,
    RecipeArgument,
    RecipeData,
    TaskName,
    Weights,
)
from obc.cli.inputs import model_of
from obc.cli.job import Job
from obc.cli.output import Output, Result
from obc.cli.tune import recipe_and_task
from obc.disk.claim import claimed
from obc.errors import ObcError
from obc.reporting import fill
from obc.tuning.recipe import Recipe
from obc.tuning.sparse import sparsify


def run(
    out: Output,
    recipe: RecipeArgument,
    folder: Folder,
    model: Annotated[
        str | None,
        typer.Option(help="A trained model: a folder that obc wrote, or instead of the recipe's."),
    ] = None,
    weights: Weights = None,
    pretrained: Pretrained = False,
    data: RecipeData = None,
    task: TaskName = None,
) -> Result:
    """Do all of a recipe: sparse learning, pruning, tuning, merging, saving, evaluating.

    Example: obc run resnet20-digits --model runs/dense --out runs/digits

    Example: obc run resnet56-cifar10 --weights resnet56.safetensors --data cifar10:data/cifar10
    --out runs/resnet56
    """
    chosen, purpose = recipe_and_task(recipe, data, task, model)
    if chosen.prune is None:
        raise ObcError(f"{recipe} has no [prune]; `obc tune` tunes alone")
    name = model or chosen.model
    if name is None:
        raise ObcError(f"{recipe} names no model; --model does")
    if not (Path(name).is_dir() or weights or pretrained):
        raise ObcError(
            f"'{name}' would start untrained: give --weights FILE, --pretrained, or --model DIR "
            f"with a model that `obc tune {name} --recipe {recipe} --out DIR` has trained"
        )
    net = model_of(name, purpose, weights, pretrained)
    facts = {"command": "run", "recipe": recipe, "model": name, "weights": weights, "data": data}
    with claimed(folder, {**facts, "task": task}, advice=ELSEWHERE):
        job = Job(out, net, purpose, folder)
        return _run(job, chosen, recipe)


def _run(job: Job, recipe: Recipe, name: str) -> Result:
    net, pruning = job.model, recipe.prune
    assert pruning is not None
    record = recording.begin(f"{name}: {pruning.target}", net, job.task, recipe.seed)
    rows = [job.measure("before")]
    teacher = copy.deepcopy(net) if recipe.distill else None
    if recipe.sparse is not None:
        with job.out.doing("sparse learning"):
            learned = sparsify(net, job.task, recipe, job.folder / "sparse")
        record.tuning.append(fill.tuning("sparse learning", learned, "before pruning"))
        rows.append(job.measure("sparse"))
    plan = job.plan(
        pruning.batch_size,
        target=pruning.target,
        criterion=pruning.criterion,
        rows=pruning.rows,
        step=pruning.step,
        ignore=pruning.ignore,
        seed=recipe.seed,
    )
    whole = copy.deepcopy(net)
    measured = {0: rows[-1]}
    rows += job.cut(
        record,
        plan,
        equivalent=pruning.equivalent,
        samples=pruning.recalibrate,
        batch_size=pruning.batch_size,
        seed=recipe.seed,
    )
    measured[len(plan.history)] = rows[-1]
    tuned = job.tune("tuning", recipe, teacher=teacher)
    way = "EP" if pruning.equivalent else "naive"
    record.tuning.append(fill.tuning(way, tuned, pruning.target))
    rows.append(job.save(job.measure(f"tuned ({way})")))
    plans, criteria = {pruning.target: plan}, [pruning.criterion]
    recording.add_pruning(record, whole, job.task, pruning.batch_size, plans, criteria, measured)
    return job.finish(record, rows)
