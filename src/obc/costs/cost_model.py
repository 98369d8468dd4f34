"""What a model costs at any number of kept channels, without cutting or running it.

One run with channel ids says how each dimension of each operand shrinks with its site. MACs and
parameters are then sums of products of dimensions, exact for every choice of counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from obc.costs.counting import cost
from obc.errors import ObcError
from obc.running.modules import named_tensors
from obc.running.snapshot import unchanged
from obc.tracing.flow import Flow, bind
from obc.tracing.narrow import narrow
from obc.tracing.rules.products import Dim, Operands, total
from obc.tracing.tracer import Tracing
from obc.tracing.trial import hollow


class Products:
    """A sum of products of dimensions.

    >>> own = Products([(9, [Dim(16, ((0, 1),)), Dim(8, ((1, 1),))])], [16, 8])
    >>> own(torch.tensor([[16, 8], [4, 8], [4, 2]]))
    tensor([1152,  288,   72])
    """

    def __init__(self, terms: Sequence[tuple[int, Sequence[Dim]]], sizes: Sequence[int]) -> None:
        self._sizes = torch.tensor(sizes)
        merged: dict[tuple[Dim, ...], int] = {}
        for factor, dims in terms:
            moving = []
            for dim in dims:
                if dim.rate:
                    moving.append(dim)
                else:
                    factor *= dim.size
            key = tuple(sorted(moving, key=lambda d: (d.rate, d.size)))
            merged[key] = merged.get(key, 0) + factor
        width = max((len(dims) for dims in merged), default=0)
        self._factor = torch.tensor(list(merged.values()), dtype=torch.long)
        self._full = torch.ones(len(merged), width, dtype=torch.float64)
        self._rate = torch.zeros(len(merged), width, len(sizes), dtype=torch.float64)
        for t, dims in enumerate(merged):
            for d, dim in enumerate(dims):
                self._full[t, d] = dim.size
                for site, rate in dim.rate:
                    self._rate[t, d, site] = rate

    def __call__(self, counts: Tensor) -> Tensor:
        """The value for each row of counts, [rows, sites] to [rows]: whole numbers, exact."""
        gone = (self._sizes - counts).double()
        terms, width, sites = self._rate.shape
        found = []
        for rows in gone.split(max(1, (1 << 22) // max(1, terms * width))):
            lost = rows @ self._rate.view(terms * width, sites).T
            dims = self._full - lost.view(-1, terms, width)
            found.append((dims.round().long().prod(2) * self._factor).sum(1))
        return torch.cat(found)


@dataclass(frozen=True)
class Costs:
    """MACs, parameters and channels as functions of the kept counts of all sites."""

    macs: Products
    params: Products
    channels: Products

    def of(self, unit: str) -> Products:
        found: Products = getattr(self, unit)
        return found


def costs_of(tracing: Tracing) -> Costs:
    """Read the costs off one more run, and try them on the model at full width and narrower."""
    sizes = [s.size for s in tracing.sites]
    counted = _Counted(tracing)
    with unchanged(tracing.model):
        tracing.run(counted)
    full = cost(tracing.model, tracing.example)
    rest = full.macs - counted.seen
    macs = Products([*counted.terms, (rest, [])], sizes)
    found = Costs(macs, Products(_params(tracing), sizes), Products(_channels(sizes), sizes))
    _check(tracing, found, {})
    _check(tracing, found, {s.name: range(s.size - s.size // 3) for s in tracing.sites})
    return found


def _channels(sizes: Sequence[int]) -> list[tuple[int, list[Dim]]]:
    return [(1, [Dim(size, ((i, 1),))]) for i, size in enumerate(sizes)]


def _params(tracing: Tracing) -> list[tuple[int, list[Dim]]]:
    rates: dict[tuple[str, int], dict[int, int]] = {}
    for i, site in enumerate(tracing.sites):
        for m in site.members:
            rates.setdefault((m.name, m.dim), {})[i] = m.index.shape[1]
    model = tracing.model
    own = {id(p) for p in model.parameters()}
    return [
        (1, [_dim(n, rates.get((name, d), {})) for d, n in enumerate(tensor.shape)])
        for name, tensor in named_tensors(model).items()
        if id(tensor) in own
    ]


def _dim(size: int, rate: Mapping[int, int]) -> Dim:
    return Dim(size, tuple(sorted(rate.items())))


def _check(tracing: Tracing, costs: Costs, units: Mapping[str, range]) -> None:
    """What is predicted must be what is counted on the model itself."""
    counts = torch.tensor([[len(units.get(s.name, range(s.size))) for s in tracing.sites]])
    model = tracing.model
    with unchanged(model):
        narrow(model, tracing.sites, {n: list(r) for n, r in units.items()}, hollow)
        found = cost(model, tracing.example)
    if (found.macs, found.params) != (int(costs.macs(counts)), int(costs.params(counts))):
        raise ObcError(
            f"this model's cost does not follow its channels: {found.macs} MACs and "
            f"{found.params} parameters where {int(costs.macs(counts))} and "
            f"{int(costs.params(counts))} were expected; prune it with Plan.from_kept"
        )


class _Counted(Flow):
    """Notes for each operator that costs anything how its operands' dimensions shrink."""

    def __init__(self, tracing: Tracing) -> None:
        super().__init__(tracing.model, tracing.flow.find)
        self.terms: list[tuple[int, list[Dim]]] = []
        self.seen = 0
        self._of = tracing.classes.of
        self._sizes = [site.size for site in tracing.sites]
        self._site = torch.full((tracing.flow.ledger.size,), -1)
        leaves = {leaf.name: leaf for leaf in tracing.flow.leaves.values()}
        for i, site in enumerate(tracing.sites):
            member = site.members[0]
            ids = leaves[member.name].dims[member.dim]
            assert ids is not None
            self._site[self._of[ids[member.index[:, 0]]]] = i

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        formula = self.find(func).macs
        if formula is not None:
            products = formula(Operands(bind(func, args, kwargs), out, self._dims))
            self.terms += [(1, dims) for dims in products]
            self.seen += total(products)
        return out

    def _dims(self, tensor: Tensor) -> list[Dim]:
        """Removed ids always fill whole slices: find the dimension along which they do."""
        rates: list[dict[int, int]] = [{} for _ in tensor.shape]
        known = self.of(tensor)
        for ids in known.labels if known else ():
            cls = torch.where(ids >= 0, self._of[ids.clamp_min(0)], -1)
            for d, n in enumerate(ids.shape):
                rows = cls.movedim(d, 0).reshape(n, -1)
                if n > 1 and not rates[d] and bool((rows == rows[:, :1]).all()):
                    first = rows[:, 0]
                    sites = self._site[first[first >= 0]]
                    there, count = sites[sites >= 0].unique(return_counts=True)
                    rates[d] = {
                        i: c // self._sizes[i]
                        for i, c in zip(there.tolist(), count.tolist(), strict=True)
                    }
                    break
        return [_dim(n, rate) for n, rate in zip(tensor.shape, rates, strict=True)]
