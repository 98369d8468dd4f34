"""`obc prune`, `obc tune` and `obc run`: the work itself, each of it resumable."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import nn

from obc.cli import recording
from obc.cli.arguments import (
    ELSEWHERE,
    Criterion,
    DataName,
    Folder,
    Ignore,
    Model,
    Pretrained,
    RecipeArgument,
    RecipeData,
    Seed,
    Teacher,
    Weights,
)
from obc.cli.arguments import Recipe as RecipeOption
from obc.cli.inputs import Batches, data_of, example_of, loss, model_of
from obc.cli.measure import Measured, measured, models_table, plain
from obc.cli.output import Output, Result
from obc.data import Data
from obc.disk.claim import claimed
from obc.equivalent.apply import apply
from obc.errors import ObcError
from obc.files.reference import reference
from obc.files.saving import save
from obc.plans.plan import Plan
from obc.reporting import fill
from obc.reporting.page import report
from obc.reporting.record import Record
from obc.search.planner import plan as make_plan
from obc.tracing.tracer import trace
from obc.tuning.recipe import Recipe
from obc.tuning.sparse import GroupSparsity
from obc.tuning.trainer import Tuned, finetune


@dataclass
class Job:
    """A model, its images, and the folder that one command works in."""

    out: Output
    model: nn.Module
    data: Data
    folder: Path

    def __post_init__(self) -> None:
        self.example = example_of(self.model, self.data)

    def measure(self, name: str, saved: bool = False) -> Measured:
        with self.out.doing(f"evaluating: {name}"):
            place = self.folder if saved else None
            return measured(name, self.model, self.data.test, self.example, place)

    def plan(self, batch_size: int, **settings: Any) -> Plan:
        with self.out.doing("planning"):
            batches = Batches(self.data.train, batch_size)
            found: Plan = make_plan(
                self.model,
                self.example,
                batches,
                loss,
                resume=self.folder / "planning",
                **settings,
            )
            return found

    def tune(self, name: str, recipe: Recipe, **more: Any) -> Tuned:
        with self.out.doing(name):
            train, test = self.data.train, self.data.test
            return finetune(self.model, train, test, recipe, out=self.folder / name, **more)

    def finish(self, record: Record, rows: list[Measured]) -> Result:
        """Write the record and say what came of it."""
        recording.add_figures(record, rows[0], rows[-1])
        record.latency = [m.row for m in rows]
        record.warnings = list(self.out.notes)
        record.save(self.folder)
        page = report(self.folder)
        self.out.say(models_table(record.title, rows))
        self.out.say(f"saved in {self.folder}; the report: {page}")
        return {
            "folder": self.folder,
            "report": page,
            "model": record.model,
            **{m.name: plain(m) for m in rows},
            "notes": self.out.notes,
        }


def prune(
    out: Output,
    model: Model,
    data: DataName,
    target: Annotated[
        str,
        typer.Option(help="macs=2x, macs=50% (kept), params=…, channels=…, memory=…, latency=…."),
    ],
    folder: Folder,
    criterion: Criterion = "jacobian",
    rows: Annotated[int, typer.Option(help="N: batches for each scoring.")] = 50,
    step: Annotated[float, typer.Option(help="p: share of all channels for each step.")] = 0.0025,
    batch_size: Annotated[int, typer.Option(min=1)] = 128,
    scope: Annotated[str, typer.Option(help="global, local or isomorphic.")] = "global",
    rank: Annotated[str, typer.Option(help="score or score/cost.")] = "score",
    ignore: Ignore = None,
    equivalent: Annotated[
        bool, typer.Option("--equivalent", help="Keep every connection as C and D, for obc tune.")
    ] = False,
    weights: Weights = None,
    pretrained: Pretrained = False,
    seed: Seed = 0,
) -> Result:
    """Prune a model to a target: plan, cut, check, evaluate, save.

    Example: obc prune runs/dense --data digits --target macs=2x --out runs/half

    Example: obc prune torchvision:resnet50 --pretrained --data folder:imagenet --target macs=2x
    --step 0.01 --out runs/resnet50
    """
    images = data_of(data)
    net = model_of(model, images, weights, pretrained)
    settings: dict[str, Any] = {
        "target": target,
        "criterion": criterion,
        "rows": rows,
        "step": step,
        "scope": scope,
        "rank": rank,
        "ignore": ignore or [],
        "seed": seed,
    }
    facts = {"command": "prune", "model": model, "weights": weights, "data": data}
    own = {"batch size": batch_size, "equivalent": equivalent}
    with claimed(folder, {**facts, **own, **settings}, advice=ELSEWHERE):
        job = Job(out, net, images, folder)
        title = f"{reference(net)} on {images.name}: {target} by {criterion}"
        record = recording.begin(title, net, data, seed)
        before = job.measure("before")
        plan = job.plan(batch_size, **settings)
        whole = copy.deepcopy(net)
        apply(net, plan, equivalent=equivalent)
        save(net, folder)
        after = job.measure("pruned", saved=True)
        seen = {0: before, len(plan.history): after}
        batches = Batches(images.train, batch_size)
        recording.add_pruning(
            record, whole, job.example, batches, {target: plan}, [criterion], seen
        )
        return job.finish(record, [before, after])


def tune(
    out: Output,
    model: Model,
    recipe: RecipeOption,
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="A folder for this run; MODEL/tuned if not given."),
    ] = None,
    data: RecipeData = None,
    teacher: Teacher = None,
) -> Result:
    """Tune a pruned model by a recipe, or train a fresh one; C and D are merged at the end.

    Example: obc tune runs/half --recipe resnet20-digits

    Example: obc tune resnet20 --recipe resnet20-digits --out runs/dense
    """
    chosen, images = _recipe_and_data(recipe, data)
    net = model_of(model, images)
    if folder is None and not Path(model).is_dir():
        raise ObcError(f"'{model}' is no folder, so say where the tuned model goes: --out DIR")
    place = folder if folder is not None else Path(model) / "tuned"
    facts = {"command": "tune", "model": model, "recipe": recipe, "data": data, "teacher": teacher}
    with claimed(place, facts, advice=ELSEWHERE):
        job = Job(out, net, images, place)
        record = recording.begin(
            f"{reference(net)} on {images.name}: tuned", net, images.name, chosen.seed
        )
        before = job.measure("before")
        asked = None
        if teacher is not None:
            named = not Path(teacher).is_dir()
            asked = model_of(teacher, images, pretrained=named)
        tuned = job.tune("tuning", chosen, teacher=asked)
        save(net, place)
        record.tuning = [fill.tuning("tuned", tuned)]
        return job.finish(record, [before, job.measure("tuned", saved=True)])


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
) -> Result:
    """Do all of a recipe: sparse learning, pruning, tuning, merging, saving, evaluating.

    Example: obc run resnet20-digits --model runs/dense --out runs/digits

    Example: obc run resnet56-cifar10 --weights resnet56.safetensors --data cifar10:data/cifar10
    --out runs/resnet56
    """
    chosen, images = _recipe_and_data(recipe, data)
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
    net = model_of(name, images, weights, pretrained)
    facts = {"command": "run", "recipe": recipe, "model": name, "weights": weights, "data": data}
    with claimed(folder, facts, advice=ELSEWHERE):
        job = Job(out, net, images, folder)
        return _run(job, chosen, recipe)


def _run(job: Job, recipe: Recipe, name: str) -> Result:
    net, pruning = job.model, recipe.prune
    assert pruning is not None
    record = recording.begin(f"{name}: {pruning.target}", net, job.data.name, recipe.seed)
    rows = [job.measure("before")]
    teacher = copy.deepcopy(net) if recipe.distill else None
    if recipe.sparse is not None:
        own = recipe.sparse
        press = GroupSparsity(trace(net, job.example, ignore=pruning.ignore), own.strength)
        sparse = recipe.changed(
            lr=own.lr,
            epochs=own.epochs,
            milestones=own.milestones,
            schedule="multistep",
            warmup_epochs=0,
            distill=0.0,
            prune=None,
            sparse=None,
        )
        learned = job.tune("sparse", sparse, callback=press)
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
    apply(net, plan, equivalent=pruning.equivalent)
    rows.append(job.measure("pruned"))
    tuned = job.tune("tuning", recipe, teacher=teacher)
    save(net, job.folder)
    way = "EP" if pruning.equivalent else "naive"
    record.tuning.append(fill.tuning(way, tuned, pruning.target))
    rows.append(job.measure(f"tuned ({way})", saved=True))
    batches = Batches(job.data.train, pruning.batch_size)
    seen = {0: rows[-3], len(plan.history): rows[-2]}
    plans, criteria = {pruning.target: plan}, [pruning.criterion]
    recording.add_pruning(record, whole, job.example, batches, plans, criteria, seen)
    return job.finish(record, rows)


def _recipe_and_data(recipe: str, data: str | None) -> tuple[Recipe, Data]:
    chosen = Recipe.load(recipe)
    name = data or chosen.data
    if name is None:
        raise ObcError(f"{recipe} names no data; --data does")
    return chosen, data_of(name)
