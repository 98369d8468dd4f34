"""`obc export`: a model as a file for other runtimes, checked before it is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from obc.cli.arguments import DataOrNone, Model, Pretrained, Shape, TaskName, Weights
from obc.cli.inputs import example_of, model_of, task_of
from obc.cli.output import Output, Result
from obc.equivalent.attach import is_equivalent
from obc.equivalent.merge import merge
from obc.errors import ObcError
from obc.files.export import export as write
from obc.files.reference import reference
from obc.models import resolve


def export(
    out: Output,
    model: Model,
    file: Annotated[Path, typer.Argument(help="To write: model.onnx, model.pt2 or model.gguf.")],
    data: DataOrNone = None,
    task: TaskName = None,
    shape: Shape = None,
    weights: Weights = None,
    pretrained: Pretrained = False,
    original: Annotated[
        bool, typer.Option("--original", help="Measure the unpruned model beside it.")
    ] = False,
) -> Result:
    """Export a model to ONNX, a torch program or GGUF, and check that the file holds the same.

    Example: obc export runs/demo/2x-ep model.onnx --original

    Example: obc export runs/smaller model.gguf
    """
    purpose = task_of(data, task, model) if data or task else None
    net = model_of(model, purpose, weights, pretrained)
    example = example_of(net, purpose, shape)
    if is_equivalent(net):
        merge(net)
    name = reference(net)
    if original and name is None:
        raise ObcError(f"{model} does not say what the unpruned model was; leave --original out")
    with out.doing("exporting"):
        whole = resolve(name).eval() if original and name else None
        exported = write(net, example, file, original=whole)
    out.say(str(exported))
    result = {
        "file": exported.path,
        "relative error": exported.error,
        "bytes": exported.pruned.bytes,
    }
    if exported.pruned.seconds is not None:
        result["milliseconds"] = exported.pruned.seconds * 1e3
    if exported.original is not None and exported.original.seconds is not None:
        result |= {
            "original bytes": exported.original.bytes,
            "original milliseconds": exported.original.seconds * 1e3,
        }
    return result
