"""mAP of a detector on blood cells: criteria, budgets, cut, recalibrated and tuned for one epoch.

    python -m benchmarks.detection yolov7_tiny --data bccd --runs runs/detection

trains the detector by its recipe in `benchmarks/recipes`, unless the folder of runs has it, and
then fills the table: each cell is one criterion, one draw of calibration images and one unit, in
which one planning run makes a plan for each budget. What the result file has is not run again, so
a run that was stopped goes on; with weights of another digest it is refused.

Milliseconds are those of ONNX Runtime on one image, the processor's time of one thread, the whole
file and the small one taking turns; of the first draw only.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

import obc
from benchmarks._harness import CONSOLE, Cells, show
from obc.disk import digest
from obc.models import resolve as resolve_model
from obc.planning.planner import by_blocks
from obc.recalibration.recalibrate import call_by
from obc.running import onnx
from obc.running.timing import race, relative
from obc.tasks import Detection, resolve
from obc.tasks.recalibration import recalibrate_for
from obc.tuning.recipe import Recipe

RECIPES = Path(__file__).parent / "recipes"
DEFAULT = "default"  # what `obc.prune` does: each group one block, ranked by score ÷ cost
REDUNDANCY = "redundancy"  # joint redundancy, ranked by score ÷ cost
CRITERIA = (DEFAULT, "jacobian", "hessian", "l1", "random", REDUNDANCY)
UNITS = {
    "channels": ("channels=80%", "channels=70%", "channels=60%", "channels=50%"),
    "macs": ("macs=1.5x", "macs=2x"),
}
TUNED = ("channels=50%", "macs=2x")  # the budgets after which one epoch is tuned
COLUMNS = (
    *("budget", "criterion", "cut", "recalibrated", "cut, one epoch", "recalibrated, one epoch"),
    *("MACs", "ms", "draws"),
)
EPOCH = {"optimizer": "adamw", "lr": 5e-4, "weight_decay": 0.01, "epochs": 1, "batch_size": 8}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", choices=[p.stem.removesuffix("-bccd") for p in recipes()])
    parser.add_argument("--data", type=Path, required=True, help="blood cells, as Pascal VOC")
    parser.add_argument("--runs", type=Path, help="where the trained detector goes")
    parser.add_argument("--weights", type=Path, help="safetensors of a detector, not to train one")
    parser.add_argument("--criteria", nargs="+", default=CRITERIA)
    parser.add_argument("--units", nargs="+", default=list(UNITS), choices=list(UNITS))
    parser.add_argument("--draws", nargs="+", type=int, default=[0], help="of calibration images")
    parser.add_argument("--rows", type=int, default=8, help="batches of 8 for each scoring")
    parser.add_argument("--step", type=float, default=0.05, help="share of all channels")
    parser.add_argument("--samples", type=int, default=128, help="images to recalibrate on")
    return parser.parse_args()


def recipes() -> list[Path]:
    return sorted(RECIPES.glob("*-bccd.toml"))


def trained(task: Detection, recipe: Recipe, options: argparse.Namespace) -> nn.Module:
    """The detector, from random weights by its recipe; a run that was stopped goes on."""
    torch.manual_seed(recipe.seed)
    assert recipe.model is not None
    model = resolve_model(task.fitted(recipe.model)).to(memory_format=torch.channels_last)
    if options.weights is not None:
        model.load_state_dict(load_file(options.weights))
    else:
        # Without test images: an evaluation after each epoch would cost a third of it.
        images, folder = Detection(task.images, name=task.name), options.runs / options.network
        obc.finetune(model, images, recipe, out=folder, tracker=None)
    return model.to(memory_format=torch.contiguous_format).eval()


def table(cells: Cells, protocol: str) -> None:
    """Print what the cells have."""
    whole = cells.results["whole"]
    CONSOLE.print(protocol)
    CONSOLE.print(f"whole: mAP@0.5 {whole['map50']:.3f}, mAP@0.5:0.95 {whole['map']:.3f}")
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for key, point in cells.results.items():
        if key != "whole":
            criterion, _, budget = key.split("|")
            groups.setdefault((budget, criterion), []).append(point)
    order = [budget for budgets in UNITS.values() for budget in budgets]
    names = sorted(groups, key=lambda k: (order.index(k[0]), CRITERIA.index(k[1])))
    rows = [(*name, *figures(groups[name]), str(len(groups[name]))) for name in names]
    show("mAP@0.5 / mAP@0.5:0.95, mean over draws", COLUMNS, rows)


def figures(points: list[dict[str, Any]]) -> list[str]:
    """Cut, recalibrated, tuned from either, MACs and milliseconds."""
    text = []
    for stage in ("cut", "recalibrated", "tuned from the cut", "tuned"):
        there = [p[stage] for p in points if stage in p]
        pair = [f"{statistics.mean(p[m] for p in there):.3f}" for m in ("map50", "map") if there]
        text.append(" / ".join(pair) or "–")
    macs = statistics.mean(p["macs"] for p in points) / 1e6
    timed = [p for p in points if "onnx ms" in p]
    return [*text, f"{macs:.1f} M", f"{timed[0]['onnx ms']:.2f}" if timed else "–"]


def plans_for(
    model: nn.Module, task: Detection, criterion: str, unit: str, draw: int, options: Any
) -> list[obc.Plan]:
    settings: dict[str, Any] = {"rows": options.rows, "step": options.step, "seed": draw}
    if criterion == DEFAULT:
        settings = by_blocks(settings)
    else:
        settings |= {"criterion": criterion}
    if criterion == REDUNDANCY:
        settings |= {"rank": "score/cost"}
    torch.manual_seed(draw)
    batches = task.calibration(8)
    return obc.plan(model, task.example(), batches, task.loss, target=list(UNITS[unit]), **settings)


@dataclass(frozen=True)
class Whole:
    """The trained detector, its task, and its ONNX file in memory."""

    task: Detection
    model: nn.Module
    session: Any

    @classmethod
    def of(cls, task: Detection, model: nn.Module) -> Whole:
        return cls(task, model, exported(model, task)[0])


def exported(model: nn.Module, task: Detection) -> tuple[Any, float]:
    """A session of the ONNX file, which has put out what the model does, and how far it was off."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        error = obc.export(model, task.example(), path).error
        return onnx.session_of(path), error


def cell(cells: Cells, whole: Whole, name: str, draw: int, unit: str, options: Any) -> None:
    """One planning run, and what its plans are worth."""
    keys = {budget: f"{name}|{draw}|{budget}" for budget in UNITS[unit]}
    if all(key in cells.results for key in keys.values()):
        return
    start = time.process_time()
    plans = plans_for(whole.model, whole.task, name, unit, draw, options)
    planning = (time.process_time() - start) / len(plans)
    torch.manual_seed(draw)
    batches = list(islice(whole.task.calibration(8), -(-options.samples // 8)))
    for plan, (budget, key) in zip(plans, keys.items(), strict=True):
        if key not in cells.results:
            figures = point(whole, plan, batches, budget, draw, options)
            cells.add(key, {"planning": planning, **figures})


def point(
    whole: Whole, plan: obc.Plan, batches: list[Any], budget: str, draw: int, options: Any
) -> dict[str, Any]:
    """Cut, recalibrated, after one epoch from either, and how long the ONNX file takes."""
    task = whole.task
    cut = obc.apply(copy.deepcopy(whole.model), plan)
    small, start = copy.deepcopy(cut), time.process_time()
    sizes = {"samples": options.samples, "batch_size": 8}
    account = recalibrate_for(task, small, whole.model, **sizes, seed=draw)
    seconds = time.process_time() - start
    cost = obc.cost(small, task.example())
    figures: dict[str, Any] = {
        "cut": task.evaluate(cut).named(),
        "recalibrated": task.evaluate(small).named(),
        "recalibration": seconds,
        "judged": account.judged,
        "macs": cost.macs,
        "params": cost.params,
    }
    if account.judged is not None and not account.kept:  # what the judge has taken back
        fitted = copy.deepcopy(cut)
        said = {"call": partial(call_by, task), "samples": options.samples, "seed": draw}
        obc.recalibrate(fitted, whole.model, batches, **said)
        figures["taken back"] = task.evaluate(fitted).named()
    if draw == 0:
        figures |= milliseconds(whole, small)
    if budget in TUNED and draw == 0:
        for stage, model in (("tuned", small), ("tuned from the cut", cut)):
            obc.finetune(model, Detection(task.images), Recipe(**EPOCH, seed=draw), tracker=None)
            figures[stage] = task.evaluate(model).named()
    return figures


def milliseconds(whole: Whole, small: nn.Module) -> dict[str, Any]:
    """Of the two ONNX files, taking turns; `onnx share` is the median over the turns."""
    try:
        session, error = exported(small, whole.task)
    except obc.ObcError as refused:  # large weights let rounding grow beyond what an export allows
        return {"onnx refused": str(refused)}
    runs = [
        partial(s.run, None, onnx.feed(s, whole.task.example())) for s in (whole.session, session)
    ]
    race(runs, turns=3, seconds=0)  # warm
    before, after = race(runs, turns=50)
    return {
        "onnx ms": 1e3 * min(after),
        "onnx ms of the whole": 1e3 * min(before),
        "onnx share": relative(after, before),
        "onnx error": error,
    }


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    recipe = Recipe.load(RECIPES / f"{options.network}-bccd.toml")
    size = str(recipe.data).partition(",")[2]
    task = resolve(f"voc:{options.data},{size}")
    assert isinstance(task, Detection)
    model = trained(task, recipe, options)
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    protocol = {
        "evaluation": task.protocol,
        "network": recipe.model,
        "recipe": recipe.model_dump(mode="json", exclude_defaults=True),
        "digest of the weights": digest.of_tensors(weights),
        "calibration": f"{options.rows} batches of 8 training images for each scoring, steps of "
        f"{options.step:.0%} of all channels; {options.samples} images to recalibrate",
        "one epoch": EPOCH,
    }
    cells = Cells(f"detection_{options.network}", protocol)
    if "whole" not in cells.results:
        cost = obc.cost(model, task.example())
        quality = {**task.evaluate(model).named(), "classes": task.per_class(model)}
        cells.add("whole", {**quality, "macs": cost.macs, "params": cost.params})
    whole = Whole.of(task, model)
    for unit in options.units:
        for draw in options.draws:
            for criterion in options.criteria:
                cell(cells, whole, criterion, draw, unit, options)
    table(cells, task.protocol)


if __name__ == "__main__":
    main()
