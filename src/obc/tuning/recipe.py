"""`Recipe`: every number of a run, read from TOML and checked before anything starts."""

from __future__ import annotations

import importlib
import os
import sys
from importlib import resources
from importlib.abc import Traversable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from obc.errors import ObcError, closest

tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]

# Fields that are the task's: how training data are varied, and labels softened.
TASK_OPTIONS = (
    *("crop", "flip", "rand_augment", "mixup", "cutmix", "erasing", "repeated_augmentation"),
    "label_smoothing",
)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Prune(_Strict):
    """How a model is pruned before it is tuned."""

    target: str
    criterion: str = "jacobian"
    rows: Count = 50  # N: batches per scoring
    batch_size: Count = 128
    step: Annotated[float, Field(gt=0, lt=1)] = 0.0025  # p: share of all channels per scoring
    pace: Literal["channels", "cost"] = "channels"  # what step is a share of
    sites: list[str] = []  # kinds or patterns; all if there are none
    ignore: list[str] = []
    equivalent: bool = True  # EP, or naive
    recalibrate: Annotated[int, Field(ge=0)] = 0  # samples, before tuning; the paper has no such


class Sparse(_Strict):
    """Sparse learning before pruning, at the recipe's own batch size, momentum and decay."""

    epochs: Count
    lr: Positive
    strength: Positive  # λ
    milestones: list[Count] = []


class Lora(_Strict):
    """Adapters that learn in place of the weights, and are folded into them at the end."""

    rank: Count = 8
    alpha: Positive = 16.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0


class Recipe(_Strict):
    """Settings of `obc.finetune`; lr and batch size are those of all processes together.

    >>> recipe = Recipe(lr=0.01, epochs=100, batch_size=128, milestones=[60, 80])
    >>> recipe.optimizer, recipe.schedule
    ('sgd', 'multistep')
    >>> Recipe(lr=0.01, epochs=100, batch_size=128, optimizer="adam")
    Traceback (most recent call last):
    ...
    obc.errors.ObcError: optimizer: Input should be 'sgd' or 'adamw', not 'adam'...
    """

    model: str | None = None
    data: str | None = None
    task: str | None = None  # one of your own, file.py:make, instead of data
    seed: Annotated[int, Field(ge=0)] = 0

    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: Positive
    weight_decay: NotNegative = 0.0
    ep_lr: Positive | None = None  # of C and D; as lr if not given
    ep_weight_decay: NotNegative | None = None
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9  # sgd
    betas: list[Annotated[float, Field(ge=0, lt=1)]] = Field(
        [0.9, 0.999], min_length=2, max_length=2
    )

    epochs: Count
    batch_size: Count
    accumulate: Count = 1
    schedule: Literal["multistep", "cosine", "constant"] = "multistep"
    milestones: list[Count] = []  # epochs after which lr is multiplied by gamma
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.1
    warmup_epochs: Annotated[int, Field(ge=0)] = 0
    warmup_factor: Annotated[float, Field(gt=0, le=1)] = 1.0  # linear from lr times this

    clip: Positive | None = None
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    amp: Literal["no", "fp16", "bf16"] = "no"
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    distill: Share = 0.0
    temperature: Positive = 1.0

    crop: Annotated[int, Field(ge=0)] = 0  # pixels of padding around a random crop
    flip: bool = False
    mixup: NotNegative = 0.0  # both parameters of a beta distribution
    cutmix: NotNegative = 0.0
    erasing: Share = 0.0
    rand_augment: Annotated[int, Field(ge=0, le=30)] = 0  # magnitude of two operations
    repeated_augmentation: Count = 1

    prune: Prune | None = None
    sparse: Sparse | None = None
    lora: Lora | None = None

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ObcError(_explained(error)) from None

    @model_validator(mode="after")
    def _possible(self) -> Recipe:
        steps = [self.milestones, *([self.sparse.milestones] if self.sparse else [])]
        if any(a >= b for own in steps for a, b in pairwise(own)):
            raise ValueError("milestones: must rise")
        if self.sparse and self.sparse.milestones[-1:] >= [self.sparse.epochs]:
            raise ValueError(f"sparse.milestones: must lie below epochs = {self.sparse.epochs}")
        if self.milestones and self.schedule != "multistep":
            raise ValueError(f"milestones: only with schedule = 'multistep', not '{self.schedule}'")
        if self.milestones and self.milestones[-1] >= self.epochs:
            raise ValueError(f"milestones: must lie below epochs = {self.epochs}")
        if self.milestones and self.milestones[0] <= self.warmup_epochs:
            raise ValueError(f"milestones: must lie above warmup_epochs = {self.warmup_epochs}")
        if self.warmup_epochs >= self.epochs:
            raise ValueError(f"warmup_epochs: must lie below epochs = {self.epochs}")
        if self.batch_size % self.accumulate:
            raise ValueError(f"accumulate: must divide batch_size = {self.batch_size}")
        return self

    @classmethod
    def load(cls, source: str | os.PathLike[str]) -> Recipe:
        """A recipe from a TOML file, or by the name of one that comes with the library.

        >>> Recipe.load("resnet56-cifar10").epochs
        100
        """
        path = _find(source)
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ObcError(f"{path} cannot be read as TOML: {error}") from None
        try:
            return cls(**values)
        except ObcError as error:
            raise ObcError(f"{path}: {error}") from None

    @property
    def task_options(self) -> dict[str, Any]:
        """What the recipe asks of its task beyond the defaults."""
        fields = type(self).model_fields
        chosen = {name: getattr(self, name) for name in TASK_OPTIONS}
        return {name: v for name, v in chosen.items() if v != fields[name].default}

    def changed(self, **values: Any) -> Recipe:
        """The same recipe with other values, checked again."""
        return Recipe(**{**self.model_dump(), **values})


def known() -> dict[str, Traversable]:
    """The recipes that come with the library, by name."""
    folder = resources.files("obc.tuning") / "recipes"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return {file.name.removesuffix(".toml"): file for file in files}


def _find(source: str | os.PathLike[str]) -> Path | Traversable:
    path = Path(source)
    if path.is_file():
        return path
    names = known()
    if str(source) in names:
        return names[str(source)]
    raise ObcError(
        f"no recipe at {path}{closest(str(source), names)}; by name there are {', '.join(names)}"
    )


def _explained(error: ValidationError) -> str:
    """The first thing that is wrong: the field, what is allowed, and what was there."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        *path, name = first["loc"]
        tables: dict[Any, type[BaseModel]] = {"prune": Prune, "sparse": Sparse, "lora": Lora}
        allowed = tables.get(path[0] if path else "", Recipe).model_fields
        return (
            f"{where}: no such field{closest(str(name), allowed)}; there are {', '.join(allowed)}"
        )
    if first["type"] == "missing":
        return f"{where}: must be given"
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    return f"{where}: {first['msg']}, not {first['input']!r}"
