"""`obc data`: a data set by name, laid out as `--data tensors:FOLDER` reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from obc.cli.output import Output, Result
from obc.data import load
from obc.data.fetch import fetch


def data(
    out: Output,
    name: Annotated[str, typer.Argument(help="hf:NAME or torchvision:NAME.")],
    folder: Annotated[Path, typer.Argument(help="Where to put it.")],
    size: Annotated[int | None, typer.Option(min=1, help="Scale images to so many pixels.")] = None,
) -> Result:
    """Fetch a data set of images, and lay it out as `--data tensors:FOLDER` reads it.

    Example: obc data torchvision:FashionMNIST data/fashion-mnist

    Example: obc data hf:uoft-cs/cifar10 data/cifar10
    """
    with out.doing(f"fetching {name}"):
        place = fetch(name, folder, size=size)
    images = load("tensors", place)
    out.say(
        f"{place}: {len(images.train)} training and {len(images.test)} test images of "
        f"{'x'.join(map(str, images.shape))}, {len(images.classes)} classes; "
        f"--data tensors:{place} takes it"
    )
    return {
        "folder": place,
        "train": len(images.train),
        "test": len(images.test),
        "shape": list(images.shape),
        "classes": list(images.classes),
    }
