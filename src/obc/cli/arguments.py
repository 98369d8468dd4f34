"""Arguments that several commands have, with their help and what a shell may complete."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from obc.criteria.criterion import names as criteria
from obc.data import NAMES
from obc.models.resolver import OWN
from obc.tuning.recipe import known as recipes

ELSEWHERE = "choose another folder with --out"  # where a folder holds other work


def _models() -> list[str]:
    return [*OWN, "torchvision:", "timm:", "hf:"]


def _recipes() -> list[str]:
    return list(recipes())


def _data() -> list[str]:
    return list(NAMES)


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A folder that obc wrote, or a name: resnet20, resnet20,width=8, "
        "torchvision:resnet50, timm:…, hf:…, file.py:factory.",
        autocompletion=_models,
    ),
]
Weights = Annotated[
    Path | None, typer.Option(help="A safetensors file with the model's weights.", metavar="FILE")
]
Pretrained = Annotated[bool, typer.Option("--pretrained", help="Take the library's own weights.")]
DataName = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="NAME[:FOLDER]",
        help=f"Images: {', '.join(NAMES)}. All but the digits lie in a folder: "
        "cifar10:data/cifar10. One of your own is folder:photos,size=224. For language models: "
        "text:FILE, with test=FILE, length=2048, join=blank and so on behind commas.",
        autocompletion=_data,
    ),
]
DataOrNone = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="NAME[:FOLDER]",
        help="Data to take the input's shape from.",
        autocompletion=_data,
    ),
]
RecipeData = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="NAME[:FOLDER]",
        help="Instead of the recipe's own.",
        autocompletion=_data,
    ),
]
TaskName = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="FILE.py:MAKE",
        help="Instead of --data: a function of yours that makes a task, an obc.tasks.Task.",
    ),
]
Shape = Annotated[
    str | None,
    typer.Option("--input", metavar="1x3x224x224", help="The shape of what the model takes."),
]
Rows = Annotated[
    int | None,
    typer.Option(
        help="N: batches for each scoring; 50, of images by the jacobian 10, of text 32, for "
        "detectors 16."
    ),
]
Step = Annotated[
    float | None,
    typer.Option(
        help="p: share of all channels for each step; 0.0025, of images by the jacobian 0.02, of "
        "text 0.1 by cost."
    ),
]
BatchSize = Annotated[int | None, typer.Option(min=1, help="128, of text 1.")]
Criterion = Annotated[str, typer.Option(help="What a channel is worth.", autocompletion=criteria)]
Recipe = Annotated[
    str,
    typer.Option(
        "--recipe",
        metavar="RECIPE",
        help="A TOML file, or the name of a recipe that comes with obc.",
        autocompletion=_recipes,
    ),
]
RecipeArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="A TOML file, or the name of a recipe that comes with obc.",
        autocompletion=_recipes,
    ),
]
Teacher = Annotated[
    str | None,
    typer.Option(metavar="MODEL", help="The unpruned model, for recipes that distill."),
]
Folder = Annotated[Path, typer.Option("--out", help="A folder for this run.", metavar="DIR")]
Ignore = Annotated[
    list[str] | None, typer.Option(help="A layer that keeps its channels, or a pattern.")
]
Seed = Annotated[int, typer.Option(help="Of everything that is drawn.", min=0)]
