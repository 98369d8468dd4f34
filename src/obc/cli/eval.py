"""`obc eval`: what a model is worth, what it costs, how long it takes."""

from __future__ import annotations

from pathlib import Path

from obc.cli.arguments import DataName, Model, Pretrained, TaskName, Weights
from obc.cli.inputs import example_of, model_of, task_of, untrained
from obc.cli.measure import measured, models_table, plain
from obc.cli.output import Output, Result
from obc.files.reference import reference
from obc.files.shards import is_saved


def evaluate(
    out: Output,
    model: Model,
    data: DataName = None,
    task: TaskName = None,
    weights: Weights = None,
    pretrained: Pretrained = False,
) -> Result:
    """Evaluate a model: its metrics, its cost, and the time of one example.

    Example: obc eval runs/demo/2x-ep --data digits

    Example: obc eval runs/smaller --data text:tale.txt,length=2048

    Example: obc eval resnet56 --weights resnet56.safetensors --data cifar10:data/cifar10
    """
    purpose = task_of(data, task, model)
    net = model_of(model, purpose, weights, pretrained)
    place = Path(model.removeprefix("hf:"))
    saved = place if is_saved(place) else None
    with out.doing("evaluating"):
        row = measured(model, net, purpose, example_of(net, purpose), saved)
        speeds = purpose.speed(net)
    if random := untrained(model, weights, pretrained):
        out.note(random)
    out.say(models_table(purpose.protocol, [row]))
    for name, value in speeds.items():
        out.say(f"{name}: {value:,.0f}")
    return {
        "model": reference(net) or model,
        "data": data or task,
        "protocol": purpose.protocol,
        **plain(row),
        **speeds,
    }
