"""`record.json`: what a run leaves behind to be shown; `obc.report` draws the page from it."""

from __future__ import annotations

import math
import os
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from obc.disk.claim import make
from obc.disk.reading import parse, read_bytes
from obc.disk.writing import write
from obc.errors import ObcError
from obc.tasks.evaluation import Metric

FILE = "record.json"  # planning and tuning keep a run.json of their own
_WHAT = "a record"

Count = Annotated[int, Field(ge=0)]
# The value of the metric that counts, which records of version 1 call accuracy.
_QUALITY = AliasChoices("quality", "accuracy")
ACCURACY = Metric("accuracy", unit="%", most=100.0)
Share = Annotated[float, Field(ge=0, le=1)]


def finite(value: float | None) -> float | None:
    """The value, or None for one that JSON has no word for.

    >>> finite(1.5), finite(float("inf"))
    (1.5, None)
    """
    return value if value is not None and math.isfinite(value) else None


class _Part(BaseModel):
    """A number that is not finite is refused: JSON knows none, and nothing could be drawn."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Figure(_Part):
    """One number of the summary, e.g. top-1 97.2 % (98.1 before)."""

    name: str
    value: int | float | str
    unit: str = ""
    note: str = ""


class Environment(_Part):
    """Where the run was made; `fill.environment()` finds out."""

    machine: str
    cores: int = Field(gt=0)
    threads: int = Field(gt=0)
    system: str
    python: str
    torch: str
    obc: str


class Widths(_Part):
    """Channels of each site before, and after each named plan ("2x"); all plans name all sites."""

    before: dict[str, Count]
    after: dict[str, dict[str, Count]]

    @model_validator(mode="after")
    def _same_sites(self) -> Widths:
        for plan, widths in self.after.items():
            if widths.keys() != self.before.keys():
                raise ValueError(f"the plan {plan!r} is for other sites than there were before")
        return self


class Step(_Part):
    """Cost after a step of planning, 0 being the model as it was, and what was evaluated."""

    step: Count
    macs: Count
    params: Count
    channels: Count
    quality: float | None = Field(default=None, validation_alias=_QUALITY)
    loss: float | None = None


class Scores(_Part):
    """How one criterion's scores are spread, and where the cut fell.

    `edges` has one entry more than `counts`; with `log` they are drawn on a logarithmic axis, and
    `zeros` counts the channels that have no place on it.
    """

    criterion: str
    edges: list[float]
    counts: list[Count]
    log: bool = False
    zeros: Count = 0
    cut: float | None = None

    @model_validator(mode="after")
    def _fits(self) -> Scores:
        if len(self.edges) != len(self.counts) + 1 or not self.counts:
            raise ValueError("a histogram has one edge more than bars, and at least one bar")
        if any(a >= b for a, b in pairwise(self.edges)):
            raise ValueError("the edges of a histogram rise")
        if self.log and self.edges[0] <= 0:
            raise ValueError("a logarithmic axis begins above 0")
        return self


class Heat(_Part):
    """abs(JᵀJ) of some filters of a layer; each filter takes `block` rows and columns."""

    layer: str
    values: list[list[Annotated[float, Field(ge=0)]]]
    block: int | None = Field(default=None, gt=0)
    note: str = ""

    @model_validator(mode="after")
    def _square(self) -> Heat:
        if not self.values or any(len(row) != len(self.values) for row in self.values):
            raise ValueError("a heat map is a square matrix")
        return self


class Fit(_Part):
    """One weight of a recalibration: its error before and after, as shares of the variance."""

    name: str
    before: float | None = Field(default=None, ge=0)
    after: float | None = Field(default=None, ge=0)
    kept: bool = False
    note: str = ""


class Recalibrated(_Part):
    """What a recalibration did, in the order in which the weights were fitted.

    Errors are those of held-out samples; `before` and `after` are the network's own outputs'.
    """

    plan: str = ""
    samples: Count
    kept: bool
    before: float | None = Field(default=None, ge=0)
    after: float | None = Field(default=None, ge=0)
    fits: list[Fit] = []


class Epoch(_Part):
    """One epoch: mean training loss, quality on the validation data, learning rate."""

    epoch: Count
    loss: float
    quality: float | None = Field(default=None, validation_alias=_QUALITY)
    lr: float | None = None


class Tuning(_Part):
    """One curve of tuning; curves of one `plan` ("2x") are drawn in one figure."""

    name: str
    plan: str = ""
    epochs: list[Epoch] = Field(min_length=1)


class Point(_Part):
    """What is left of a model without fine-tuning, over several seeds.

    `channels`, `params` and `macs` are the shares removed, from 0 to 1; `quality` is None where it
    is not finite, as the perplexity of a ruined model may be.
    """

    channels: Share
    params: Share
    macs: Share
    quality: float | None = Field(validation_alias=_QUALITY)
    quality_std: float = Field(
        default=0.0, ge=0, validation_alias=AliasChoices("quality_std", "accuracy_std")
    )
    loss: float | None = None
    loss_std: float | None = Field(default=None, ge=0)


class Curve(_Part):
    """One criterion of a comparison; `seconds` is the mean time of one scoring step."""

    criterion: str
    points: list[Point] = Field(min_length=1)
    seeds: int | None = Field(default=None, gt=0)
    seconds: float | None = Field(default=None, ge=0)


class Judged(_Part):
    """One place of a run: the metric, how much worse it is, and the bound of that at 95%.

    `macs` says how many times fewer there are than in the whole model.
    """

    split: str
    metric: str
    macs: float = Field(gt=0)
    quality: float
    loss: float
    bound: float


class Latency(_Part):
    """One row of the table of models: what each costs, and what was measured."""

    name: str
    macs: Count | None = None
    params: Count | None = None
    size: Count | None = None  # bytes on disk
    milliseconds: float | None = Field(default=None, ge=0)
    quality: float | None = Field(default=None, validation_alias=_QUALITY)


class Box(_Part):
    """A box that a detector found: its corner and sides in pixels, score and label."""

    x: float
    y: float
    width: float = Field(gt=0)
    height: float = Field(gt=0)
    score: Share
    label: Count


class Scene(_Part):
    """One image, a JPEG in base64, and what each of several models found on it, by their names."""

    image: str = Field(pattern=r"^[A-Za-z0-9+/]+={0,2}$")
    width: int = Field(gt=0)
    height: int = Field(gt=0)
    classes: list[str]
    found: dict[str, list[Box]]

    @model_validator(mode="after")
    def _labelled(self) -> Scene:
        if any(box.label >= len(self.classes) for boxes in self.found.values() for box in boxes):
            raise ValueError("a box has a label beyond the classes")
        return self


class Record(BaseModel):
    """All that is known of a run; only the title and the command must be there.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> record = Record(title="ResNet-20 on digits", command="obc demo")
    >>> record.figures.append(Figure(name="top-1", value=97.2, unit="%", note="98.1 before"))
    >>> _ = record.save(folder)
    >>> Record.load(folder).figures[0].value
    97.2
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, validate_assignment=True
    )

    format: Literal["obc.record"] = "obc.record"
    version: Literal[1, 2] = 2
    title: str
    command: str
    created: str = Field(
        default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds")
    )
    commit: str | None = None
    model: str | None = None
    data: str | None = None
    metric: Metric = ACCURACY  # that every quality is a value of
    protocol: str | None = None  # how it was measured
    seed: int | None = None
    environment: Environment | None = None
    warnings: list[str] = []
    figures: list[Figure] = []
    widths: Widths | None = None
    steps: list[Step] = []
    scores: list[Scores] = []
    heats: list[Heat] = []
    recalibration: list[Recalibrated] = []
    tuning: list[Tuning] = []
    comparison: list[Curve] = []
    frontier: list[Judged] = []
    latency: list[Latency] = []
    scenes: list[Scene] = []

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write `record.json` in a folder, aside first; the folder is made if it is not there."""
        try:
            whole = Record.model_validate(self.model_dump())
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ObcError(f"the record cannot be saved: {where}: {first['msg']}") from None
        path = make(folder) / FILE
        text = whole.model_dump_json(indent=1).encode()
        write(path, lambda aside: aside.write_bytes(text))
        return path

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Record:
        """Read the record in a folder and check all of it."""
        path = Path(folder) / FILE
        if not path.exists():
            raise ObcError(f"{folder} holds no {FILE}: no run of obc was recorded there")
        return parse(cls, read_bytes(path, _WHAT), path, _WHAT)
