"""The settings of `obc.plan` beside the target, checked before any work."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from obc.criteria.criterion import Criterion, make
from obc.criteria.reduce import check
from obc.errors import ObcError, closest
from obc.running.checks import check_flag, check_whole
from obc.search.choice import chosen
from obc.search.ranking import PACES, RANKS, SCOPES
from obc.tracing.sites import Site, Sites


@dataclass(frozen=True)
class Settings:
    """The options of a run."""

    criterion: str | Criterion
    options: Mapping[str, Any]
    aggregate: str
    normalize: str
    scope: str
    rank: str
    step: float
    rows: int
    carry: float
    max_ratio: float | Mapping[str, float]
    min_channels: int | Mapping[str, int]
    round_to: int | None  # None: as the target has measured
    ignore: Sequence[str]
    seed: int
    pace: str = "channels"
    sites: Sequence[str] = ()
    uniform: bool = False
    checkpoint: bool = False

    def __post_init__(self) -> None:
        check(self.aggregate, self.normalize)
        for name, value, known in (
            ("scope", self.scope, SCOPES),
            ("rank", self.rank, RANKS),
            ("pace", self.pace, PACES),
        ):
            if value not in known:
                raise ObcError(f"{name} must be one of {', '.join(known)}, not {value!r}")
        if not isinstance(self.step, (int, float)) or not 0 < self.step <= 1:
            raise ObcError(
                f"step is a share of all {self.pace}, above 0 up to 1, not {self.step!r}"
            )
        if not isinstance(self.carry, (int, float)) or not 0 <= self.carry < 1:
            raise ObcError(f"carry is from 0 up to, but not, 1, not {self.carry!r}")
        check_flag("uniform", self.uniform)
        check_flag("checkpoint", self.checkpoint)
        check_whole("seed", self.seed)
        check_whole("rows", self.rows, 1)
        if self.round_to is not None:
            check_whole("round_to", self.round_to, 1)

    def make_criterion(self) -> Criterion:
        options = dict(self.options)
        if self.criterion == "random":
            options.setdefault("seed", self.seed)
        criterion = make(self.criterion, **options)
        if criterion.joint and self.carry:
            raise ObcError("this criterion scores once, so there is nothing to carry: carry=0")
        return criterion

    def floors(self, sites: Sites, model: nn.Module) -> list[int]:
        """The least that each site keeps: all of it, where an ignored layer puts it out.

        The trace itself ignores nothing, so that sites have the names that `obc.apply` will find.
        """
        for option in (self.max_ratio, self.min_channels):
            for name in option if isinstance(option, Mapping) else ():
                sites[name]  # an unknown name is an error that says which was meant
        stay, open_to = self._ignored(model), chosen(sites, self.sites)
        return [
            site.size
            if site.name not in open_to
            or any(m.role != "in" and m.name.startswith(stay) for m in site.members)
            else self._floor(site)
            for site in sites
        ]

    def _ignored(self, model: nn.Module) -> tuple[str, ...]:
        """What the names of ignored layers' parameters begin with."""
        names = [n for n, _ in model.named_modules() if n]
        prefixes: list[str] = []
        for pattern in self.ignore:
            hits = fnmatch.filter(names, pattern)
            if not hits:
                raise ObcError(
                    f"ignore: no layer named '{pattern}'{closest(pattern, names)}", section="names"
                )
            prefixes += [f"{name}." for name in hits]
        return tuple(prefixes)

    def _floor(self, site: Site) -> int:
        ratio, least = self.max_ratio, self.min_channels
        share = ratio.get(site.name, 1.0) if isinstance(ratio, Mapping) else ratio
        count = least.get(site.name, 1) if isinstance(least, Mapping) else least
        if not isinstance(share, (int, float)) or not 0 <= share <= 1:
            raise ObcError(f"max_ratio is a share from 0 to 1, not {share!r}")
        check_whole("min_channels", count, 1)
        count = max(count, site.picked)
        return min(site.size, max(count, site.size - math.floor(site.size * share + 1e-9)))

    def described(self) -> dict[str, str | int | float | bool | None]:
        """The settings as plain values, for the plan and to recognise a run by."""
        criterion = self.criterion
        name = criterion if isinstance(criterion, str) else _named(criterion)
        return {
            "criterion": name,
            **{f"criterion.{k}": _plain(v) for k, v in sorted(self.options.items())},
            "aggregate": self.aggregate,
            "normalize": self.normalize,
            "scope": self.scope,
            "rank": self.rank,
            "step": float(self.step),
            "rows": self.rows,
            "carry": float(self.carry),
            "max_ratio": _plain(self.max_ratio),
            "min_channels": _plain(self.min_channels),
            "round_to": self.round_to,
            "ignore": ", ".join(self.ignore),
            "seed": self.seed,
            **self._further(),
        }

    def _further(self) -> dict[str, str | int | float | bool | None]:
        """What came later, where it is used: runs that were begun without it go on."""
        later: dict[str, str | int | float | bool | None] = {}
        if self.pace != "channels":
            later["pace"] = self.pace
        if self.sites:
            later["sites"] = ", ".join(self.sites)
        if self.uniform:
            later["uniform"] = True
        return later


def _named(criterion: Criterion) -> str:
    known = {k: v for k, v in sorted(vars(criterion).items()) if not k.startswith("_")}
    return f"{type(criterion).__qualname__}({', '.join(f'{k}={v!r}' for k, v in known.items())})"


def _plain(value: Any) -> str | int | float | bool | None:
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    return str(dict(sorted(value.items()))) if isinstance(value, Mapping) else str(value)
