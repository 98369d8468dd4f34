"""Every site is cut once before a trace is handed out, so that what it offers, `apply` takes.

Each site loses another share of its channels, and the narrower model must compute what the masked
original does. This shows what no flow of ids does: a factor of the width (`x / C ** 0.5`), a table
of numbers as long as the width (`arange(C)`), two widths that must be equal.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from obc.errors import ObcError
from obc.running.difference import NothingToCompare
from obc.running.snapshot import unchanged
from obc.tracing.narrow import narrow
from obc.tracing.proof import Proof
from obc.tracing.sites import Site
from obc.tracing.trial import Failure, Trial, alike, full, where

_SEED = 0
_HALF = (torch.float16, torch.bfloat16)
Group = list[Site]


class Rehearsal:
    """Cuts the sites of a trial by values."""

    def __init__(self, trial: Trial, example: Any) -> None:
        self.trial, self.example = trial, example

    def possible(self) -> bool:
        """Whether values say anything: not without any, nor at half precision.

        There, rounding alone can add up to more than a small fault does.
        """
        kinds = {(p.is_meta, p.dtype) for p in self.trial.model.parameters()}
        return not any(meta or dtype in _HALF for meta, dtype in kinds)

    def failures(self, sites: list[Site]) -> tuple[list[tuple[Group, Failure]], list[Tie]]:
        """The groups of like sites that cannot be cut, and pairs that can if they go together."""
        groups = alike(self.trial.model, sites)
        units = _shares(sites)
        bad: list[tuple[Group, Failure]] = []
        fine: list[Site] = []
        self._sort(fine, groups, units, bad)
        ties = self._ties(fine, bad, units)
        tied = {s.name for a, b in ties for s in (*a, *b)}
        return [(g, f) for g, f in bad if g[0].name not in tied], ties

    def _sort(
        self,
        fine: list[Site],
        groups: list[Group],
        units: Mapping[str, list[int]],
        bad: list[tuple[Group, Failure]],
    ) -> None:
        """Add groups to those that are fine, halving what fails until single groups are left."""
        failure = self._attempt([*fine, *(s for g in groups for s in g)], units)
        if failure is None:
            fine += [s for g in groups for s in g]
        elif len(groups) == 1:
            bad.append((groups[0], failure))
        else:
            half = len(groups) // 2
            self._sort(fine, groups[:half], units, bad)
            self._sort(fine, groups[half:], units, bad)

    def _ties(
        self, fine: list[Site], bad: list[tuple[Group, Failure]], units: Mapping[str, list[int]]
    ) -> list[Tie]:
        """Groups of one size that fail alone and pass when they lose the same channels."""
        ties: list[Tie] = []
        left = [group for group, _ in bad]
        while left:
            first = left.pop(0)
            for second in left:
                if [s.size for s in first] != [s.size for s in second]:
                    continue
                pairs = zip(first, second, strict=True)
                same = {**units, **{b.name: units[a.name] for a, b in pairs}}
                if self._attempt([*fine, *first, *second], same) is None:
                    ties.append((first, second))
                    fine += [*first, *second]
                    left.remove(second)
                    break
        return ties

    def _attempt(self, sites: list[Site], units: Mapping[str, list[int]]) -> Failure | None:
        """Cut these sites by values and compare; None when nothing speaks against it."""
        trial = self.trial
        gone = trial.gone_ids(sites, units)
        ids = {s.name: trial.ids(s) for s in sites}
        try:
            expected = Proof(trial.model, trial.flow, self.example, gone, ids)
            with unchanged(trial.model):
                narrow(trial.model, sites, units, full)
                expected.error(trial.model)
        except NothingToCompare:
            return None
        except ObcError as error:
            return Failure(trial.met(gone.nonzero().reshape(-1)), str(error))
        except Exception as error:
            return Failure.of(error, trial.model, trial.flow.steps[-1].place)
        return None


Tie = tuple[Group, Group]


def _shares(sites: list[Site]) -> dict[str, list[int]]:
    """What each site keeps: another share for each, so that equal widths do not stay equal."""
    draw = random.Random(_SEED)
    units = {}
    for number, site in enumerate(sites):
        share = 0.35 + 0.5 * (number * 0.618 % 1)  # steps of the golden ratio never repeat
        count = min(max(round(site.size * share), 1), site.size - 1)
        units[site.name] = sorted(draw.sample(range(site.size), count))
    return units
