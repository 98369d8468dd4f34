"""Seconds in a runtime at any widths, from a few dozen measured ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from obc.costs.candidates import Candidates
from obc.costs.cost_model import Costs
from obc.costs.polynomials import Key, Monomials, collected
from obc.tracing.sites import Site

_MEASURED = 28
_MULTIPLES = (1, 2, 4, 8, 16)
_TOWARDS = 0.7  # the share of its width at which a multiple is tried
_LEVEL = 0.05  # multiples that save as much within this are level, and the smallest is taken
_BY_MACS = 0.8  # of the time is expected to follow MACs, the rest to stay
_RIDGE = 1e-3
_SWEEPS = 500


class Fitted:
    """Seconds as a function of the kept counts of all sites, [rows, sites] to [rows].

    Operators of one kind, those with the same work for each pair of channels, have a rate for
    their MACs and one for their channels, whatever else a runtime does takes constant time:

        t(counts) = c + Σ_kinds (a_kind MACs_kind(counts) + b_kind channels_kind(counts)),

    with a, b, c ≥ 0 fitted to the relative errors of measured cuts, and drawn a little towards
    time in proportion to MACs, which decides where measurements do not. The model at full width
    takes what it was measured to take.

    `multiple` is that at which widths are to stay, and `error` the median relative error over cuts
    that the fit had not seen.
    """

    def __init__(self, costs: Costs, candidates: Candidates, multiple: int | None = None) -> None:
        sites = costs.tracing.sites
        sizes = [site.size for site in sites]
        self.candidates = candidates
        self.multiple = multiple or best_multiple(costs, candidates)
        self._factor, self._sizes, self._whole = 1.0, torch.tensor([sizes]), candidates.whole
        kinds = _kinds(costs)
        keys = sorted({key for terms in kinds for key, _ in terms}, key=str)
        self._monomials = Monomials(keys, sizes)
        place = {key: i for i, key in enumerate(keys)}
        self._features = torch.zeros(len(keys), len(kinds), dtype=torch.float64)
        for column, terms in enumerate(kinds):
            for key, factor in terms:
                self._features[place[key], column] += factor
        self._full = self._values(self._sizes)[0]
        by_macs = self._full[: len(kinds) // 2]
        share = _BY_MACS * by_macs / by_macs.sum()
        rest = torch.tensor([0.0] * len(share) + [1 - _BY_MACS], dtype=torch.float64)
        self._prior = candidates.whole * torch.cat([share, rest])
        counts = drawn([(s.size, unit_of(s, self.multiple)) for s in sites], _MEASURED)
        seconds = torch.tensor([candidates.seconds(row) for row in counts.tolist()])
        unseen = torch.arange(len(counts)) % 4 == 3
        self._fit(counts[~unseen], seconds[~unseen])
        self.error = float((self(counts[unseen]) / seconds[unseen] - 1).abs().median())
        self._fit(counts, seconds)

    def __call__(self, counts: Tensor) -> Tensor:
        return self._factor * (self._columns(counts) @ self._rates)

    def correct(self, factor: float) -> None:
        """From now on cuts are predicted to take so many times as long: one was measured."""
        self._factor *= factor

    def _values(self, counts: Tensor) -> Tensor:
        """The features, [rows, features]: one pass over the products that they are made of."""
        return torch.cat([m.double() @ self._features for m in self._monomials.values(counts)])

    def _columns(self, counts: Tensor) -> Tensor:
        """Each feature as a share of its value at full width, and the constant."""
        shares = self._values(counts) / self._full
        return torch.cat([shares, torch.ones(len(counts), 1, dtype=torch.float64)], 1)

    def _fit(self, counts: Tensor, seconds: Tensor) -> None:
        """Least squares of relative errors, |t / measured − 1|², with the pull of the prior."""
        rows = torch.cat([self._columns(counts), self._columns(self._sizes)])
        times = torch.cat([seconds.double(), torch.tensor([self._whole], dtype=torch.float64)])
        pull = (_RIDGE * len(times)) ** 0.5 / self._whole
        ridge = pull * torch.eye(rows.shape[1], dtype=torch.float64)
        values = torch.cat([torch.ones_like(times), ridge @ self._prior])
        rates = nonnegative(torch.cat([rows / times[:, None], ridge]), values)
        self._rates = rates * self._whole / float(self._columns(self._sizes) @ rates)


def _kinds(costs: Costs) -> list[list[tuple[Key, int]]]:
    """For each kind of operator that shrinks its MACs, then the channels it reads and writes."""
    kinds: dict[tuple[int, int], list[tuple[Key, int]]] = {}
    for term in costs.operators:
        moving, factor = collected(term)
        if moving:
            kinds.setdefault((len(moving), factor), []).append((moving, factor))
    channels: list[list[tuple[Key, int]]] = [
        [((dim,), 1) for key, _ in kind for dim in key] for kind in kinds.values()
    ]
    return [*kinds.values(), *channels]


def unit_of(site: Site, multiple: int) -> int:
    """How many channels of a site go together so that its layers' widths stay at a multiple.

    A head of 64 channels is a multiple of 8 already, and four filters of a group convolution are
    half of eight.
    """
    width = next((m.index.shape[1] for m in site.members if m.role == "out"), 1)
    return multiple // math.gcd(width, multiple)


def nonnegative(rows: Tensor, values: Tensor) -> Tensor:
    """The x ≥ 0 with the least |rows x − values|², one coordinate after the other.

    >>> nonnegative(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([2.0, -1.0]))
    tensor([2., 0.])
    """
    gram, moment = rows.T @ rows, rows.T @ values
    x = torch.zeros_like(moment)
    for _ in range(_SWEEPS):
        for i in range(len(x)):
            if gram[i, i] > 0:
                x[i] = (x[i] + (moment[i] - gram[i] @ x) / gram[i, i]).clamp_min(0)
    return x


def drawn(widths: Sequence[tuple[int, int]], count: int) -> Tensor:
    """Counts to measure at, for sites of a size and a unit each: narrower and narrower in the
    mean, and different from site to site.

    >>> drawn([(16, 8), (4, 1)], 3).tolist()[0]
    [16, 4]
    """
    generator = torch.Generator().manual_seed(0)
    full, unit = torch.tensor(widths).T
    means = torch.linspace(1.0, 0.3, count)[:, None]
    shares = means + 0.5 * (torch.rand(count, len(widths), generator=generator) - 0.5)
    counts = (shares.clamp(0.1, 1) * full / unit).round().long() * unit
    return torch.minimum(torch.maximum(counts, unit), full)


def best_multiple(costs: Costs, candidates: Candidates) -> int:
    """The multiple at which widths save the most seconds for each MAC that goes.

    Each is tried on a cut whose widths are its odd multiples; the smallest of those that are level
    is taken, as it leaves the most choice.
    """
    sizes = [site.size for site in costs.tracing.sites]
    whole = float(costs.macs(torch.tensor([sizes])))
    saved: dict[int, float] = {}
    for multiple in _MULTIPLES:
        counts = [_odd(s.size, unit_of(s, multiple)) for s in costs.tracing.sites]
        gone = whole - float(costs.macs(torch.tensor([counts])))
        if gone > 0.05 * whole:
            saved[multiple] = (candidates.whole - candidates.seconds(counts)) / gone
    most = max(saved.values(), default=0.0)
    return min((m for m, s in saved.items() if s >= most * (1 - _LEVEL)), default=1)


def _odd(size: int, multiple: int) -> int:
    """The largest odd multiple up to the share that is tried, or the whole width.

    >>> _odd(64, 1), _odd(64, 8), _odd(16, 16)
    (43, 40, 16)
    """
    times = int(_TOWARDS * size / multiple)
    times -= 1 - times % 2
    return times * multiple if times > 0 else size
