"""Every site is cut once before a trace is handed out, so that what it offers, `apply` takes.

Each site loses another share of its channels, and the narrower model must compute what the masked
original does. This shows what no flow of ids does: a factor of the width (`x / C ** 0.5`), a table
of numbers as long as the width (`arange(C)`), two widths that must be equal, a decision by
whether a width is even or divides by three (`if C % 2`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from obc.errors import ObcError
from obc.running.difference import NothingToCompare
from obc.running.forward import forward
from obc.running.modules import named_tensors
from obc.tracing.halving import Failure, Group, partners, sort
from obc.tracing.ledger import Pairs
from obc.tracing.narrow import narrow
from obc.tracing.proof import Proof
from obc.tracing.sites import Site
from obc.tracing.trial import Trial, alike, full

_SEED = 0
_DIVISORS = (2, 3, 5, 7)
_DECISIVE = 4  # so many numbers that widths are compared with are looked at
_HALF = (torch.float16, torch.bfloat16)


class Rehearsal:
    """Cuts the sites of a trial by values."""

    def __init__(self, trial: Trial, example: Any, trains: bool, decisive: tuple[int, ...]) -> None:
        """With `trains`, the narrower model has to run in train mode as well.

        Code that compares widths with the numbers `decisive` is tried on either side of them.
        """
        self.trial, self.example, self._trains = trial, example, trains
        self._decisive = decisive
        self._compared = False  # whether values were
        # Values say nothing where there are none, and little at half precision: there, rounding
        # alone can add up to more than a fault does.
        tensors = [t for t in named_tensors(trial.model).values() if isinstance(t, nn.Parameter)]
        self._possible = not any(t.is_meta or t.dtype in _HALF for t in tensors)

    def proves(self, sites: list[Site]) -> bool:
        """Whether cutting all sites was compared by values, and is right."""
        self._compared = False
        if not sites or not self._possible:
            return False
        return self._all(sites, self._rounds(sites)) is None and self._compared

    def failures(self, sites: list[Site]) -> tuple[list[tuple[Group, Failure]], list[Pairs]]:
        """The groups of like sites that cannot be cut, and ids that must be tied so that some can.

        Where two groups of one size fail alone and pass when they lose the same channels, their
        widths have to be equal.
        """
        if not sites or not self._possible:
            return [], []
        rounds = self._rounds(sites)
        tried: dict[frozenset[str], Failure | None] = {}

        def attempt(part: list[Site]) -> Failure | None:
            names = frozenset(site.name for site in part)
            if names not in tried:
                tried[names] = self._all(part, rounds)
            return tried[names]

        if attempt(sites) is None:
            return [], []
        groups = alike(self.trial.model, sites)
        fine, bad = sort(groups, attempt, lambda *_: None)
        ties: list[Pairs] = []
        for together, equal in partners([group for group, _ in bad]):
            if not all(any(group is other for other, _ in bad) for group in together):
                continue
            joined = [site for group in together for site in group]
            pairs = [(first.name, site.name) for first, *others in equal for site in others]
            same = [{**u, **{name: u[first] for first, name in pairs}} for u in rounds]
            if self._all([*fine, *joined], same) is None:
                bad = [f for f in bad if not any(f[0] is group for group in together)]
                ties += [(self.trial.ids(row[0]), self.trial.ids(s)) for row in equal for s in row]
        return bad, ties

    def _rounds(self, sites: list[Site]) -> list[dict[str, list[int]]]:
        """What sites keep, once; where code decides by widths, several times."""
        count, largest = len(sites), max(site.size for site in sites)
        rounds = [_shares(sites)]
        decisive = [n for n in self._decisive if 0 < n <= largest][:_DECISIVE]  # what may change
        if decisive:
            rounds.append(_drawn(sites, [1 + number % 2 for number in range(count)]))
            rounds.append(_drawn(sites, [site.size - 1 for site in sites]))
        return rounds + [_drawn(sites, [width] * count) for n in decisive for width in (n - 1, n)]

    def _all(self, sites: list[Site], rounds: list[dict[str, list[int]]]) -> Failure | None:
        """Cut these sites in every round; the first failure, if there is one."""
        failures = (self._attempt(sites, units) for units in rounds)
        return next((failure for failure in failures if failure is not None), None)

    def _attempt(self, sites: list[Site], units: Mapping[str, list[int]]) -> Failure | None:
        """Cut these sites by values and compare; None when nothing speaks against it."""
        trial = self.trial
        gone = trial.gone_ids(sites, units)
        ids = {s.name: trial.ids(s) for s in sites}
        try:
            expected = Proof(trial.model, trial.flow, self.example, gone, ids, trial.before)
            with trial.before:
                narrow(trial.model, sites, units, full, trial.kept(gone))
                expected.error(trial.model)
                self._compared = True
                if self._trains:
                    forward(trial.model, self.example, training=True)
        except NothingToCompare:
            return None
        except ObcError as error:
            return Failure(trial.met(gone.nonzero().reshape(-1)), str(error))
        except Exception as error:
            return trial.failure(error, trial.flow.steps[-1].place)
        return None


def _shares(sites: list[Site]) -> dict[str, list[int]]:
    """What each site keeps: another share for each, so that equal widths do not stay equal."""
    counts = []
    for number, site in enumerate(sites):
        share = 0.35 + 0.5 * (number * 0.618 % 1)  # steps of the golden ratio never repeat
        counts.append(_unlike(site.size, max(1, site.picked), share))
    return _drawn(sites, counts)


def _drawn(sites: list[Site], counts: list[int]) -> dict[str, list[int]]:
    """So many channels of each site, or as near as can be."""
    draw = torch.Generator().manual_seed(_SEED)
    units = {}
    for site, count in zip(sites, counts, strict=True):
        count = min(max(count, 1, site.picked), site.size - 1)
        # Mostly the last ones: of an even choice each half would keep its half, whatever the code
        # cuts it by. With gaps, since neighbours that stay neighbours hide what they share. Never
        # the first, or a table of numbers might begin as the whole one does.
        first = max(1, site.size - count - count // 4 - 1)
        chosen = torch.randperm(site.size - first, generator=draw)[:count] + first
        units[site.name] = chosen.sort().values.tolist()
    return units


def _unlike(size: int, least: int, share: float) -> int:
    """A width of about this share that divides by what the whole does not, and the reverse.

    What code decides by `width % d` is then decided the other way. Small divisors count first,
    since they are the likely ones.

    >>> [_unlike(size, 1, 0.5) for size in (2, 7, 8, 12, 64)]
    [1, 6, 3, 5, 45]
    """
    middle, reach = round(size * share), min(max(round(size * 0.3), 2), 15)
    low, high = max(middle - reach, least), min(middle + reach, round(size * 0.9), size - 1)
    widths = list(range(low, high + 1)) or [min(least, size - 1)]
    differs = {n: [(n % d == 0) != (size % d == 0) for d in _DIVISORS] for n in widths}
    return max(widths, key=lambda n: (differs[n], -abs(n - size * share)))
