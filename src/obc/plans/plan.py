"""A plan: which channels of each site are kept, in the coordinates of the original model."""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)
from torch import Tensor, nn

from obc.costs.targets import Target
from obc.disk.location import location
from obc.disk.reading import LIMIT, parse, read_bytes
from obc.disk.writing import write
from obc.errors import ObcError, closest
from obc.plans import trajectory
from obc.plans.example import check_description, describe
from obc.plans.frontier import Frontier, Place, Promise
from obc.plans.summary import summary, table
from obc.tracing.experts import Moves, moves, paths
from obc.tracing.sites import Sites, shapes_of

if TYPE_CHECKING:
    from rich.table import Table


_LATER = ("promise", "places", "beyond", "modules")  # which files did not know at first


class PlanCost(BaseModel):
    """What a model costs; bytes at its `memory` peak and `seconds` only where they are a target."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    macs: int = Field(ge=0)
    params: int = Field(ge=0)
    channels: int = Field(ge=0)
    memory: int | None = Field(default=None, ge=0)
    seconds: float | None = None

    @model_serializer(mode="wrap")
    def _as_before(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Files of format 1 knew no memory: it is written only where it is known."""
        fields: dict[str, Any] = dump(self)
        return {n: v for n, v in fields.items() if n != "memory" or v is not None}


class PlanStep(BaseModel):
    """One step of a run: the channels that went, their scores then, and the cost after it.

    `restored` are channels of earlier steps that came back so that the target was met exactly.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    removed: dict[str, list[int]]
    scores: dict[str, list[float]]
    restored: dict[str, list[int]] = {}
    after: PlanCost


class SitePlan(BaseModel):
    """What one site keeps of its channels.

    `floor` is the least it may keep; `lowest_kept` and `highest_removed` are scores.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    size: int = Field(gt=0)
    kept: list[int] = Field(min_length=1)
    floor: int | None = None
    lowest_kept: float | None = None
    highest_removed: float | None = None

    @model_validator(mode="after")
    def _ordered(self) -> SitePlan:
        _check_kept(self.kept, self.size)
        return self


class Plan(BaseModel):
    """Made by `obc.plan` or `Plan.from_kept`; replayed by `obc.apply` on any copy of the model.

    >>> import torch
    >>> from obc import trace
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> plan = Plan.from_kept(trace(net, torch.zeros(1, 4)), {"0": [0, 2, 5]})
    >>> plan.kept
    {'0': [0, 2, 5]}

    A plan of `obc.plan` also says how it came about: its target and settings, the cost before and
    after, the steps, the sites that keep everything (`untouched`, by size), and notes. `modules`
    are, by site, lists of modules such as experts, of which each goes with its channel. With a
    quality target there are the promise, the `places` of the run that were evaluated, and the steps
    `beyond` this plan that the run took to find out.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal["obc.plan"] = "obc.plan"
    version: Literal[1] = 1
    sites: dict[str, SitePlan]
    shapes: dict[str, list[int]]
    example: dict[str, Any] | None = None
    target: str | None = None
    settings: dict[str, str | int | float | bool | None] = {}
    before: PlanCost | None = None
    after: PlanCost | None = None
    history: list[PlanStep] = []
    untouched: dict[str, int] = {}
    notes: list[str] = []
    promise: Promise | None = None
    places: list[Place] = []
    beyond: list[PlanStep] = []
    modules: dict[str, list[list[str]]] = {}

    @model_serializer(mode="wrap")
    def _as_before(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What files did not know at first is written only where there is something."""
        fields: dict[str, Any] = dump(self)
        return {n: v for n, v in fields.items() if n not in _LATER or v}

    @model_validator(mode="after")
    def _one_for_each(self) -> Plan:
        for name, site in self.sites.items():
            if any(len(listed) != site.size for listed in self.modules.get(name, ())):
                raise ValueError(f"modules of '{name}': one for each of {site.size} channels")
        return self

    @field_validator("example")
    @classmethod
    def _known_example(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None:
            check_description(value)
        return value

    @classmethod
    def from_kept(cls, sites: Sites, kept: Mapping[str, Sequence[int] | Tensor]) -> Plan:
        """Keep these channels of each named site; sites that are not named keep all of theirs."""
        Sites.checked(sites)
        if not isinstance(kept, Mapping):
            raise ObcError(f"kept has a list of channels for each site's name, not {kept!r}")
        chosen = {}
        for name, indices in kept.items():
            site = sites[name]
            try:
                values = sorted(_channels(indices))
                _check_kept(values, site.size)
            except ValueError as error:
                raise ObcError(f"site '{name}': {error}") from None
            chosen[name] = SitePlan(size=site.size, kept=values)
        return cls(
            sites=chosen,
            shapes={n: list(s) for n, s in sites.shapes.items()},
            example=describe(sites.example),
            modules={s.name: [paths(*x) for x in s.modules] for s in sites if s.modules},
        )

    @property
    def kept(self) -> dict[str, list[int]]:
        return {name: list(site.kept) for name, site in self.sites.items()}

    @property
    def moves(self) -> Moves:
        """Where modules of lists are after this plan, by their paths before."""
        where: dict[str, str | None] = {}
        for name, site in self.sites.items():
            for listed in self.modules.get(name, ()):
                where |= moves(listed, site.kept)
        return where

    def at(self, place: int | str | Target) -> Plan:
        """Another place of the run that made this plan, without a new one.

        After so many steps, `plan.at(12)`, or after the first at which a cost is met,
        `plan.at("macs=1.7x")`; a step removes several channels, so it may be below the target.
        """
        return trajectory.at(self, place)

    def frontier(self) -> Frontier:
        """The quality against the cost at all places of the run that were evaluated."""
        return Frontier(self)

    def summary(self) -> str:
        """The plan as text: what each site keeps, what it costs, and what to know of it."""
        return summary(self)

    def __rich__(self) -> Table:
        return table(self)

    @staticmethod
    def checked(plan: object) -> Plan:
        """The plan, if it is one."""
        if not isinstance(plan, Plan):
            kind = type(plan).__name__
            raise ObcError(f"a plan is an obc.Plan, not a {kind}; make one with obc.plan(...)")
        return plan

    def check(self, model: nn.Module) -> None:
        """Refuse a model whose shapes are not those the plan was made for."""
        shapes = shapes_of(model)
        for name, shape in self.shapes.items():
            if name not in shapes:
                raise ObcError(
                    f"the plan is for another model: no '{name}' here{closest(name, shapes)}"
                )
            if list(shapes[name]) != shape:
                raise ObcError(
                    f"the plan is for another model: '{name}' is {list(shapes[name])} here, "
                    f"{reprlib.repr(shape)} in the plan"
                )
        extra = next((n for n in shapes if n not in self.shapes), None)
        if extra is not None:
            raise ObcError(f"the plan is for another model: it knows no '{extra}'")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON, aside first, so that no half-written file is ever seen."""
        try:
            text = json.dumps(self.model_dump(), indent=1, allow_nan=False)
        except ValueError:
            raise ObcError(
                "the plan holds a number that is not finite; it cannot be saved"
            ) from None
        if len(text) > LIMIT:
            raise ObcError(f"the plan takes {len(text)} bytes, more than Plan.load reads ({LIMIT})")
        write(location(path), lambda aside: aside.write_text(text, encoding="utf-8"))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan and check all of it."""
        return parse(cls, read_bytes(location(path), "a plan"), path, "a plan")


def _channels(indices: Any) -> list[int]:
    """Whole numbers from a list, a range or a vector."""
    values = indices.tolist() if isinstance(indices, Tensor) else indices
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"kept channels must be a list of whole numbers, not {indices!r}")
    channels = list(values)
    for value in channels:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"kept channels must be whole numbers, not {value!r}")
    return channels


def _check_kept(kept: Sequence[int], size: int) -> None:
    if not kept:
        raise ValueError("nothing would be kept; keep at least one channel")
    for a, b in pairwise(kept):
        if a == b:
            raise ValueError(f"channel {a} is kept twice")
        if a > b:
            raise ValueError(f"kept channels must be in order; {b} comes after {a}")
    for i in (kept[0], kept[-1]):
        if not 0 <= i < size:
            raise ValueError(f"channel {i} is out of range; there are {size}")
