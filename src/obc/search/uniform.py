"""The last step where all sites of a kind are to keep equally many channels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from obc.costs.targets import TOLERANCE
from obc.search.landing import Landing, Value, land

Kind = tuple[int, int]
"""A kind of site, and the size of its sites."""

_AROUND = 2  # places beside the mean that are tried, of all kinds but the finest
_MOST = 4096  # combinations


def land_uniform(
    value: Value,
    levels: Sequence[Sequence[int]],
    kinds: Sequence[int],
    done: Sequence[int],
    ranking: Sequence[int],
    limit: float,
) -> Landing:
    """Where `land` would end, with one place for all sites of a kind.

    The mean place of each kind is where the ranking led, site by site. Around it, the kind whose
    places are cheapest is moved until the cost is just below the limit; of the combinations that
    land within the tolerance the one nearest to the means is taken, or else the costliest below
    the limit. `met` says whether there is any.

    >>> price = lambda counts: (counts * torch.tensor([5, 5, 1])).sum(1)
    >>> levels = [[4, 3, 2, 1], [4, 3, 2, 1], [9, 8, 7, 6, 5, 4]]
    >>> land_uniform(price, levels, [0, 0, 1], [0], [2, 2, 2, 1, 0], 37.0).places
    (1, 1, 2)
    """
    free = land(value, levels, done, ranking, limit)
    sites = _sites_of(levels, kinds)
    mean = {k: sum(free.places[i] for i in own) / len(own) for k, own in sites.items()}
    depth = {k: min(len(levels[i]) for i in own) - 1 for k, own in sites.items()}
    counts = _Counts(value, levels, sites)
    finest = min(sites, key=lambda k: counts.value({k: 0}) - counts.value({k: 1}))
    coarse = [k for k in sites if k != finest]
    around = [[p for p in range(depth[k] + 1) if abs(p - mean[k]) < _AROUND] or [0] for k in coarse]
    best: tuple[tuple[bool, float], Landing] | None = None
    for number, chosen in enumerate(product(*around)):
        if number >= _MOST:
            break
        places = dict(zip(coarse, chosen, strict=True))
        places[finest] = counts.first_below(places, finest, depth[finest], limit)
        cost = counts.value(places)
        if cost > limit:
            continue
        fits = cost * TOLERANCE >= limit
        off = sum(abs(places[k] - mean[k]) / max(1, depth[k]) for k in sites)
        key = (not fits, off if fits else -cost)
        if best is None or key < best[0]:
            best = key, Landing(counts.places(places), cost, True)
    return best[1] if best is not None else Landing(free.places, free.value, False)


def _sites_of(levels: Sequence[Sequence[int]], kinds: Sequence[int]) -> dict[Kind, list[int]]:
    """The sites of each kind and size that can lose anything."""
    groups: dict[Kind, list[int]] = {}
    for site, (own, kind) in enumerate(zip(levels, kinds, strict=True)):
        if len(own) > 1:
            groups.setdefault((kind, own[0]), []).append(site)
    return groups


class _Counts:
    """Costs by the place of each kind."""

    def __init__(
        self,
        value: Value,
        levels: Sequence[Sequence[int]],
        sites: dict[Kind, list[int]],
    ) -> None:
        self._value, self._levels, self._sites = value, levels, sites

    def places(self, chosen: dict[Kind, int]) -> tuple[int, ...]:
        places = [0] * len(self._levels)
        for kind, place in chosen.items():
            for site in self._sites[kind]:
                places[site] = place
        return tuple(places)

    def value(self, chosen: dict[Kind, int]) -> float:
        row = [own[p] for own, p in zip(self._levels, self.places(chosen), strict=True)]
        cost: Tensor = self._value(torch.tensor([row]))
        return float(cost)

    def first_below(self, chosen: dict[Kind, int], kind: Kind, depth: int, limit: float) -> int:
        """The first place of a kind at which the limit is met, or its last: the cost only falls."""
        low, high = 0, depth
        while low < high:
            middle = (low + high) // 2
            if self.value({**chosen, kind: middle}) <= limit:
                high = middle
            else:
                low = middle + 1
        return low
