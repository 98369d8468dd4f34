"""The last step: how many channels of each site, so that the cost is just what was asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from obc.costs.targets import TOLERANCE

Value = Callable[[Tensor], Tensor]
_EVERY = 1 << 16  # so few combinations are simply all tried
_BACK = 24  # how many removals may be taken back
_MOST = 40  # sites that take part in the search for a pair
_DEEP = 4  # portions of each of the two


@dataclass(frozen=True)
class Landing:
    """Where a search ended: for each site the place in its list of allowed counts, and the cost."""

    places: tuple[int, ...]
    value: float
    met: bool


def land(
    value: Value,
    levels: Sequence[Sequence[int]],
    done: Sequence[int],
    ranking: Sequence[int],
    limit: float,
) -> Landing:
    """Go down the ranking to the limit, and not below `limit / TOLERANCE`.

    `levels` are the counts each site may have; `done` the sites that have gone one level down
    already, in that order, and `ranking` the sites that would go down next. A removal that
    overshoots is passed over for one further down. Where no single one fits, one or two
    sites are chosen beside the ranking, and the last removals are taken back for it. When there
    are few combinations, all are tried. What is returned if nothing fits is the closest there is.
    """
    search = _Search(value, levels, limit)
    places = [0] * len(levels)
    for site in done:
        places[site] += 1
    landing = search.down(places, ranking)
    if not landing.met:
        search.pairs([*done, *ranking])
    if not search.met and search.few:
        search.all_combinations(landing)
    return search.best


def evenly(levels: Sequence[Sequence[int]]) -> list[int]:
    """The order in which all sites lose the same share.

    >>> evenly([[4, 2, 1], [2, 1]])
    [0, 1, 0]
    """
    steps = [(1 - n / counts[0], site) for site, counts in enumerate(levels) for n in counts[1:]]
    return [site for _, site in sorted(steps)]


class _Search:
    """Looks at combinations, and keeps the best."""

    def __init__(self, value: Value, levels: Sequence[Sequence[int]], limit: float) -> None:
        self._value, self._limit = value, limit
        self._length = torch.tensor([len(counts) for counts in levels])
        self._counts = torch.zeros(len(levels), int(self._length.max()), dtype=torch.long)
        for i, counts in enumerate(levels):
            self._counts[i, : len(counts)] = torch.tensor(counts)
        self._sites = torch.arange(len(levels))
        self.few = math.prod(self._length.tolist()) <= _EVERY
        self.best = Landing((0,) * len(levels), math.inf, False)

    @property
    def met(self) -> bool:
        return self.best.met

    def values(self, places: Tensor) -> Tensor:
        return self._value(self._counts[self._sites, places]).double()

    def down(self, start: Sequence[int], ranking: Sequence[int]) -> Landing:
        """Take from the ranking what does not overshoot."""
        places = torch.tensor(start)
        now = float(self.values(places[None]))
        for site in ranking:
            if now <= self._limit:
                break
            if places[site] + 1 >= self._length[site]:
                continue
            places[site] += 1
            then = float(self.values(places[None]))
            self.keep(places, then)
            if then * TOLERANCE < self._limit:
                places[site] -= 1
            else:
                now = then
        self.keep(places, now)
        return Landing(tuple(places.tolist()), now, self.fits(now))

    def fits(self, value: float) -> bool:
        return value <= self._limit <= value * TOLERANCE

    def keep(self, places: Tensor, value: float) -> None:
        """Remember a combination if it is nearer to the limit than all before."""
        fits = self.fits(value)
        if self.best.met and not fits:
            return
        if (fits and not self.best.met) or self._off(value) < self._off(self.best.value):
            self.best = Landing(tuple(places.tolist()), value, fits)

    def _off(self, value: float) -> float:
        return abs(value - self._limit)

    def pairs(self, order: Sequence[int]) -> None:
        """Around the point where the order crosses the limit, move one or two sites more."""
        bases = self._bases(order)
        sites = list(dict.fromkeys(order))[-_MOST:]
        moves = torch.zeros(1, len(self._sites), dtype=torch.long)
        one = [moves[0]]
        for i, s in enumerate(sites):
            for a in range(1, _DEEP + 1):
                single = moves[0].clone()
                single[s] = a
                one.append(single)
                for t in sites[:i]:
                    for b in range(1, _DEEP + 1):
                        double = single.clone()
                        double[t] = b
                        one.append(double)
        moves = torch.stack(one)
        for base in bases:
            rows = base + moves
            rows = rows[(rows < self._length).all(1)]
            values = self.values(rows)
            fits = (values <= self._limit) & (values * TOLERANCE >= self._limit)
            at = int(fits.int().argmax()) if bool(fits.any()) else None
            if at is None:
                at = int((values - self._limit).abs().argmin())
            self.keep(rows[at], float(values[at]))
            if self.best.met:
                return

    def _bases(self, order: Sequence[int]) -> list[Tensor]:
        """The last states above the limit along an order, the nearest first."""
        along = torch.tensor(order, dtype=torch.long)

        def state(steps: int) -> Tensor:
            taken = torch.bincount(along[:steps], minlength=len(self._sites))
            return torch.minimum(taken, self._length - 1)

        # The cost falls along the order, so the crossing is found by halving.
        low, high = 0, len(order)
        while low < high:
            middle = (low + high + 1) // 2
            if float(self.values(state(middle)[None])) > self._limit:
                low = middle
            else:
                high = middle - 1
        return [state(steps) for steps in range(low, max(0, low - _BACK) - 1, -1)]

    def all_combinations(self, landing: Landing) -> None:
        """All combinations; of those that fit, the one nearest to where the ranking led."""
        rows = torch.cartesian_prod(*(torch.arange(n) for n in self._length.tolist()))
        rows = rows.reshape(-1, len(self._sites))
        values = self.values(rows)
        fits = (values <= self._limit) & (values * TOLERANCE >= self._limit)
        if fits.any():
            rows, values = rows[fits], values[fits]
            at = int((rows - torch.tensor(landing.places)).abs().sum(1).argmin())
        else:
            at = int((values - self._limit).abs().argmin())
        self.keep(rows[at], float(values[at]))
