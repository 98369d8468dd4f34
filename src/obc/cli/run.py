"""`obc run`: all of a recipe, each part of it resumable."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from obc.cli import recording
from obc.cli.arguments import (
    ELSEWHERE,
    Pretrained,
    RecipeArgument,
    RecipeData,
    TaskName,
    Weights,
)
from obc.cli.inputs import model_of
from obc.cli.job import Job
from obc.cli.output import Output, Result
from obc.cli.rehearsal import PUBLISHED, Rehearsal, published, synthetic
from obc.cli.tune import recipe_and_task
from obc.disk.claim import claimed
from obc.errors import ObcError
from obc.reporting import fill
from obc.reporting.scenes import scenes
from obc.running.modules import duplicate
from obc.tasks.task import Task
from obc.tuning.recipe import Recipe
from obc.tuning.sparse import sparsify


def run(
    out: Output,
    recipe: RecipeArgument,
    folder: Annotated[
        Path | None, typer.Option("--out", help="A folder for this run.", metavar="DIR")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="A trained model: a folder that obc wrote, or instead of the recipe's."),
    ] = None,
    weights: Weights = None,
    pretrained: Pretrained = False,
    data: RecipeData = None,
    task: TaskName = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check data, model and target, do two steps of everything, and say what the run "
            "will cost.",
        ),
    ] = False,
) -> Result:
    """Do all of a recipe: sparse learning, pruning, tuning, merging, saving, evaluating.

    Example: obc run resnet20-digits --model runs/dense --out runs/digits

    Example: obc run resnet56-cifar10 --weights resnet56.safetensors --data cifar10:data/cifar10
    --out runs/resnet56

    Example: obc run resnet50-imagenet --dry-run
    """
    chosen = Recipe.load(recipe)
    if chosen.prune is None:
        raise ObcError(f"{recipe} has no [prune]; `obc tune` tunes alone")
    name = model or chosen.model
    if name is None:
        raise ObcError(f"{recipe} names no model; --model does")
    if dry_run:
        return _rehearse(out, recipe, chosen, name, weights, pretrained, data, task)
    chosen, purpose = recipe_and_task(recipe, data, task, model)
    if folder is None:
        raise ObcError("say where the run goes: --out DIR")
    if not (_has_weights(name) or weights or pretrained):
        raise ObcError(
            f"'{name}' would start untrained: give --weights FILE, --pretrained, or --model DIR "
            f"with a model that `obc tune {name} --recipe {recipe} --out DIR` has trained"
        )
    net = model_of(name, purpose, weights, pretrained)
    facts = {"command": "run", "recipe": recipe, "model": name, "weights": weights, "data": data}
    with claimed(folder, {**facts, "task": task}, advice=ELSEWHERE):
        job = Job(out, net, purpose, folder)
        return _run(job, chosen, recipe)


def _rehearse(
    out: Output,
    recipe: str,
    chosen: Recipe,
    model: str,
    weights: Path | None,
    pretrained: bool,
    data: str | None,
    task: str | None,
) -> Result:
    """Two steps of everything; without the data at hand, on images of their published shape."""
    unread = PUBLISHED.get(chosen.data or "") if data is None and task is None else None
    purpose: Task | None = None
    if unread is None:
        _, purpose = recipe_and_task(recipe, data, task, model)
        next(iter(purpose.calibration(1)))  # can be read at all
    else:
        out.note(f"the data were not checked: --data {chosen.data}:FOLDER says where they are")
    images = published(purpose) if purpose is not None else unread
    small = purpose if images is None else synthetic(images, 1)
    if not (_has_weights(model) or weights or pretrained):
        out.note("weights were not checked: none are given, and the run itself needs them")
    net = model_of(model, small, weights, pretrained)
    return Rehearsal(out, chosen, purpose, images, net).run()


def _has_weights(model: str) -> bool:
    """Whether a name stands for a folder, of obc or of Hugging Face, that holds weights."""
    return Path(model.removeprefix("hf:")).is_dir()


def _run(job: Job, recipe: Recipe, name: str) -> Result:
    net, pruning = job.model, recipe.prune
    assert pruning is not None
    record = recording.begin(f"{name}: {pruning.target}", net, job.task, recipe.seed)
    rows = [job.measure("before")]
    teacher = duplicate(net) if recipe.distill else None
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
        pace=pruning.pace,
        sites=pruning.sites,
        ignore=pruning.ignore,
        seed=recipe.seed,
    )
    whole = duplicate(net)
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
    record.scenes = scenes(job.task, {"before": whole, rows[-1].name: job.model})
    plans, criteria = {pruning.target: plan}, [pruning.criterion]
    recording.add_pruning(record, whole, job.task, pruning.batch_size, plans, criteria, measured)
    return job.finish(record, rows)
