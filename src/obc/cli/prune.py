"""`obc prune`: plan, cut, check, recalibrate, evaluate, save."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

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
from obc.cli.inputs import model_of, planned, task_of, untrained
from obc.cli.job import Job
from obc.cli.output import Output, Result
from obc.costs.targets import in_runtime, runtime_of
from obc.data.sources import moved
from obc.disk.claim import claimed
from obc.disk.writing import write
from obc.errors import ObcError
from obc.files.modelling import MODELLING
from obc.files.reference import reference
from obc.planning.estimate import estimate_search
from obc.planning.planner import as_printed, by_blocks
from obc.planning.quality import Quality
from obc.reporting import fill
from obc.reporting.scenes import scenes
from obc.running.modules import duplicate
from obc.running.runtimes import seconds
from obc.search.estimate import estimate as run_estimate
from obc.tasks.language import brief
from obc.tasks.task import Task, device_of


def prune(
    out: Output,
    model: Model,
    *,
    data: DataName = None,
    task: TaskName = None,
    target: Annotated[
        str,
        typer.Option(
            help="macs=2x, macs=50% (kept), params=…, channels=…, memory=…, latency=…; or a "
            "quality to keep: accuracy-1% (one point), perplexity+5%, loss+0.05, accuracy>=92."
        ),
    ],
    folder: Folder,
    criterion: Criterion = "jacobian",
    rows: Rows = None,
    step: Step = None,
    pace: Annotated[
        str | None, typer.Option(help="What a step is a share of: channels or cost.")
    ] = None,
    batch_size: BatchSize = None,
    sites: Annotated[
        str | None,
        typer.Option(
            help="What may go: ffn, heads, experts, hidden (the residual width), or site names, "
            "with commas between; all of it, of text ffn,heads."
        ),
    ] = None,
    uniform: Annotated[
        bool, typer.Option("--uniform", help="One width over layers, for other libraries.")
    ] = False,
    scope: Annotated[str, typer.Option(help="global, local or isomorphic.")] = "global",
    rank: Annotated[
        str | None,
        typer.Option(help="score or score/cost; by default score/cost for the jacobian criterion."),
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option(
            help="For latency=…: where the model runs, torch, compile, onnxruntime or openvino. "
            "Cuts are timed there, and what is left is measured."
        ),
    ] = None,
    minimise: Annotated[
        str, typer.Option(help="For a quality to keep: macs, params, channels, memory or latency.")
    ] = "macs",
    ignore: Ignore = None,
    equivalent: Annotated[
        bool, typer.Option("--equivalent", help="Keep every connection as C and D, for obc tune.")
    ] = False,
    samples: Annotated[
        int | None,
        typer.Option(
            "--recalibrate",
            min=1,
            help="Samples from which what stays learns to take over; 512, of text 64, "
            "for detectors 128.",
        ),
    ] = None,
    no_recalibrate: Annotated[
        bool, typer.Option("--no-recalibrate", help="Leave the cut as it is.")
    ] = False,
    paper: Annotated[
        bool,
        typer.Option(
            "--paper",
            help="The paper's own procedure: 50 rows for each step of 1/400, a channel's score is "
            "the sum over its layers, not divided by cost, and nothing is recalibrated.",
        ),
    ] = False,
    checkpoint: Annotated[
        bool,
        typer.Option(
            "--checkpoint",
            help="Score with activations of one block at a time, for one more forward pass.",
        ),
    ] = False,
    estimate: Annotated[
        bool,
        typer.Option("--estimate", help="Only say what it takes: seconds, rows, memory."),
    ] = False,
    weights: Weights = None,
    pretrained: Pretrained = False,
    seed: Seed = 0,
) -> Result:
    """Prune a model to a target: plan, cut, check, recalibrate, evaluate, save.

    With --equivalent, which is for tuning, C and D start where recalibration ends.

    Example: obc prune runs/dense --data digits --target macs=2x --out runs/half

    Example: obc prune runs/dense --data digits --target accuracy-3% --out runs/kept

    Example: obc prune net.py:build --task net.py:task --target macs=2x --out runs/net

    Example: obc prune torchvision:resnet50 --pretrained --data folder:imagenet --target macs=2x
    --step 0.01 --out runs/resnet50

    Example: obc prune runs/dense --data digits --target latency=1.5x --runtime onnxruntime
    --out runs/quick

    Example: obc prune hf:smollm2 --data text:tale.txt --target params=80% --out runs/smaller
    """
    target = target if runtime is None else in_runtime(target, runtime)
    purpose = task_of(brief(data), task, model)
    with torch.device("meta") if estimate and _shapes_only(model) else nullcontext():
        net = model_of(model, purpose, weights, pretrained)
    options = {
        "rows": rows,
        "step": step,
        "pace": pace,
        "sites": sites,
        "uniform": uniform or None,
        "checkpoint": checkpoint or None,
        "rank": rank,
        "batch_size": batch_size,
        "samples": samples,
    }
    settings: dict[str, Any] = {
        "target": target,
        "criterion": criterion,
        "scope": scope,
        "ignore": ignore or [],
        "seed": seed,
        **planned(purpose, criterion, options, paper=paper, checkpoint=checkpoint),
    }
    if not estimate and (random := untrained(model, weights, pretrained)):
        out.note(random)
    batch_size, samples = settings.pop("batch_size"), settings.pop("samples")
    settings = as_printed(settings) if paper else by_blocks(settings)
    facts = {"command": "prune", "model": model, "weights": weights, "data": data, "task": task}
    samples = 0 if no_recalibrate or paper else samples
    promised = Quality.written(target)
    if promised and equivalent:
        raise ObcError(f"{target} is judged without tuning, and --equivalent is for tuning")
    if promised:
        settings["minimise"] = minimise
        batch_size = min(batch_size, samples or batch_size)  # as recalibration takes them
    quality = {"task": purpose, "samples": samples} if promised else {}
    if estimate:
        return _estimated(out, net, purpose, batch_size, {**settings, **quality})
    chosen = {"batch size": batch_size, "equivalent": equivalent, "recalibrate": samples}
    with claimed(folder, {**facts, **chosen, **settings}, advice=ELSEWHERE):
        job = Job(out, net, purpose, folder)
        title = f"{reference(net)} on {purpose.name}: {target} by {criterion}"
        record = recording.begin(title, net, purpose, seed)
        before = job.measure("before")
        plan = job.plan(batch_size, **settings, **quality)
        out.say(*plan.notes)
        whole = duplicate(net)
        stages = job.cut(
            record,
            plan,
            equivalent=equivalent,
            samples=samples,
            batch_size=batch_size,
            seed=seed,
        )
        stages[-1] = job.save(stages[-1])
        if uniform and (folder / MODELLING).exists():
            out.note(
                f"no configuration of {type(net).__name__} can say these widths, so {folder} loads "
                "with trust_remote_code=True; plain from_pretrained may load it with --sites ffn"
            )
        runtime = None if promised else runtime_of(target)
        if runtime is not None and not equivalent:
            recording.add_time(record, runtime, seconds([whole, net], job.example, runtime))
        record.scenes = scenes(purpose, {"before": whole, stages[-1].name: job.model})
        if plan.promise is not None:
            out.say(plan.frontier(), f"promised: {plan.promise}")
            record.frontier = fill.frontier(plan)
            write(folder / "frontier.csv", lambda aside: aside.write_text(plan.frontier().csv()))
        seen = {0: before, len(plan.history): stages[-1]}
        recording.add_pruning(record, whole, purpose, batch_size, {target: plan}, [criterion], seen)
        return job.finish(record, [before, *stages])


def _shapes_only(model: str) -> bool:
    """Whether a folder of Hugging Face holds a configuration and no weights."""
    place = Path(model.removeprefix("hf:"))
    return (place / "config.json").is_file() and not any(place.glob("*.safetensors"))


def _estimated(
    out: Output, net: nn.Module, task: Task, batch_size: int, settings: dict[str, Any]
) -> Result:
    """How long it would take; nothing is written."""
    estimated = estimate_search if Quality.written(settings["target"]) else run_estimate
    batches = task.calibration(batch_size)
    example = moved(task.example(), device_of(net))
    estimate = estimated(net, example, batches, task.loss, **settings)
    out.say(f"{settings['target']}: {estimate}")
    if estimated is run_estimate:
        out.say("that is planning alone: recalibration and evaluation come on top")
    return asdict(estimate)
