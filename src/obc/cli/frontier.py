"""`obc frontier`: the curve of quality against cost, to pick a point by eye."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from obc.cli import recording
from obc.cli.arguments import (
    ELSEWHERE,
    BatchSize,
    Criterion,
    DataName,
    Folder,
    Ignore,
    Model,
    Pretrained,
    Rows,
    Seed,
    Step,
    TaskName,
    Weights,
)
from obc.cli.inputs import example_of, model_of, planned, task_of, untrained
from obc.cli.output import Output, Result
from obc.disk.claim import claimed
from obc.disk.writing import write
from obc.files.reference import reference
from obc.planning.along import plan_along
from obc.reporting import fill
from obc.reporting.page import report


def frontier(
    out: Output,
    model: Model,
    *,
    data: DataName = None,
    task: TaskName = None,
    until: Annotated[str, typer.Option(help="The cost at which the curve ends.")] = "macs=4x",
    places: Annotated[int, typer.Option(help="How many to evaluate.", min=1)] = 8,
    folder: Folder,
    criterion: Criterion = "jacobian",
    rows: Rows = None,
    step: Step = None,
    batch_size: BatchSize = None,
    samples: Annotated[
        int | None,
        typer.Option(
            "--recalibrate",
            min=0,
            help="Samples; 512, of text 64, for detectors 128; 0 leaves the cut as it is.",
        ),
    ] = None,
    ignore: Ignore = None,
    weights: Weights = None,
    pretrained: Pretrained = False,
    seed: Seed = 0,
) -> Result:
    """Draw quality against cost from one run: each place cut, recalibrated, evaluated, bounded.

    Writes plan.json (obc.Plan.load(…).at("macs=1.7x") takes any point), frontier.csv and a report.

    Example: obc frontier runs/dense --data digits --until macs=4x --out runs/curve
    """
    purpose = task_of(data, task, model)
    net = model_of(model, purpose, weights, pretrained)
    if random := untrained(model, weights, pretrained):
        out.note(random)
    options = {"rows": rows, "step": step, "batch_size": batch_size, "samples": samples}
    settings: dict[str, Any] = {
        "criterion": criterion,
        "ignore": ignore or [],
        "seed": seed,
        "until": until,
        "places": places,
        **planned(purpose, criterion, options),
    }
    batches = purpose.calibration(settings.pop("batch_size"))
    facts = {"command": "frontier", "model": model, "weights": weights, "data": data, "task": task}
    with claimed(folder, {**facts, "batch size": batch_size, **settings}, advice=ELSEWHERE):
        example = example_of(net, purpose)
        title = f"{reference(net)} on {purpose.name}: {purpose.metrics[0].name} against cost"
        record = recording.begin(title, net, purpose, seed)
        with out.doing("planning and evaluating"):
            kept = folder / "planning"
            plan = plan_along(
                net, example, batches, purpose.loss, task=purpose, resume=kept, **settings
            )
        curve = plan.frontier()
        plan.save(folder / "plan.json")
        write(folder / "frontier.csv", lambda aside: aside.write_text(curve.csv()))
        record.frontier = fill.frontier(plan)
        record.steps = fill.steps(plan)
        record.save(folder)
        page = report(folder)
        out.say(curve, f"saved in {folder}; the report: {page}")
        return {"folder": folder, "report": page, "places": [p.model_dump() for p in curve]}
