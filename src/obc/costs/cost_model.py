"""What a model costs at any number of kept channels, without cutting or running it.

One run with channel ids says how each dimension of each operand shrinks with its site. MACs and
parameters are then sums of products of dimensions, exact for every choice of counts.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from obc.costs.counting import cost
from obc.costs.polynomials import Products, Term
from obc.errors import ObcError, closest
from obc.running.modules import blocks_of, named_tensors
from obc.running.snapshot import unchanged
from obc.tracing.arguments import bind
from obc.tracing.experts import paths, within
from obc.tracing.flow import Flow
from obc.tracing.narrow import narrow
from obc.tracing.rules.products import Dim, Operands, total
from obc.tracing.tracer import Tracing
from obc.tracing.trial import How, hollow


@dataclass(frozen=True)
class Costs:
    """MACs, parameters and channels as functions of the kept counts of all sites.

    `operators` has the MACs of each operator by itself, where a formula covers it.
    """

    tracing: Tracing
    macs: Products
    params: Products
    channels: Products
    operators: Sequence[Term]


def costs_of(tracing: Tracing) -> Costs:
    """Read the costs off one more run, and try them on the model at full width and narrower."""
    sizes = [s.size for s in tracing.sites]
    counted = _Counted(tracing)
    with unchanged(tracing.model):
        tracing.run(counted)
    # Operators that no formula covers cost the same at any width.
    rest = cost(tracing.model, tracing.example).macs - counted.macs
    channels: list[Term] = [(1, [Dim(size, ((i, 1),))]) for i, size in enumerate(sizes)]
    costs = Costs(
        tracing,
        Products([*counted.terms, (rest, [])], sizes),
        Products([(1, dims) for t, dims in _state(tracing) if isinstance(t, nn.Parameter)], sizes),
        Products(channels, sizes),
        counted.terms,
    )
    _check(costs, {})
    _check(costs, {s.name: range(max(s.picked, s.size - s.size // 3)) for s in tracing.sites})
    return costs


def params_of(tracing: Tracing, part: str) -> Products:
    """The parameters whose names fit a pattern; "blocks" are those of the repeated layers."""
    names = named_tensors(tracing.model)
    if part == "blocks":
        prefix = f"{blocks_of(tracing.model)}."
        chosen = {name for name in names if name.startswith(prefix)}
    else:
        chosen = {*fnmatch.filter(names, part), *fnmatch.filter(names, f"{part}.*")}
    if not chosen:
        raise ObcError(f"params[{part}]: no parameter has such a name{closest(part, names)}")
    for site in tracing.sites:
        for m in (m for m in site.members if m.keys and not m.dim):
            if 0 < len(chosen & {*m.names}) < len(m.keys):
                raise ObcError(f"params[{part}]: some experts of '{m.layer}' and not others")
    terms: list[Term] = [
        (1, dims)
        for name, (tensor, dims) in zip(names, _state(tracing), strict=True)
        if name in chosen and isinstance(tensor, nn.Parameter)
    ]
    return Products(terms, [s.size for s in tracing.sites])


def state_bytes(tracing: Tracing) -> list[Term]:
    """The bytes of parameters and buffers, shared ones once."""
    return [(tensor.element_size(), dims) for tensor, dims in _state(tracing)]


def _state(tracing: Tracing) -> list[tuple[Tensor, list[Dim]]]:
    """Each parameter and buffer, and how its dimensions shrink."""
    rates: dict[tuple[str, int], dict[int, int]] = {}
    experts: dict[str, Dim] = {}
    for i, site in enumerate(tracing.sites):
        for m in (*site.members, *site.buffers):
            for place in m.places:
                rates.setdefault(place, {})[i] = m.index.shape[1]
        for layer, keys in site.modules:
            # All of a list are alike: the first stands for as many as there are, others for none.
            first, *others = paths(layer, keys)
            experts |= {first: Dim(site.size, ((i, 1),)), **dict.fromkeys(others, Dim(0, ()))}
    state = []
    for name, tensor in named_tensors(tracing.model).items():
        dims = [_dim(n, rates.get((name, d), {})) for d, n in enumerate(tensor.shape)]
        expert = within(name, experts)
        state.append((tensor, dims if expert is None else [experts[expert], *dims]))
    return state


def _dim(size: int, rate: Mapping[int, int]) -> Dim:
    return Dim(size, tuple(sorted(rate.items())))


@contextmanager
def narrowed(tracing: Tracing, kept: Mapping[str, range], how: How) -> Iterator[Tensor]:
    """The traced model with these channels of each site, for a while; yields the counts."""
    with unchanged(tracing.model):
        units = {name: list(channels) for name, channels in kept.items()}
        narrow(tracing.model, tracing.sites, units, how)
        yield torch.tensor([[len(kept.get(s.name, range(s.size))) for s in tracing.sites]])


def _check(costs: Costs, kept: Mapping[str, range]) -> None:
    """What is predicted must be what is counted on the model itself."""
    with narrowed(costs.tracing, kept, hollow) as counts:
        counted = cost(costs.tracing.model, costs.tracing.example)
    macs, params = int(costs.macs(counts)), int(costs.params(counts))
    if (counted.macs, counted.params) != (macs, params):
        raise ObcError(
            f"this model's cost does not follow its channels: {counted.macs} MACs and "
            f"{counted.params} parameters where {macs} and {params} were expected; "
            "prune it with Plan.from_kept"
        )


class Shrinking(Flow):
    """A run with channel ids that says how the dimensions of each tensor shrink."""

    def __init__(self, tracing: Tracing) -> None:
        super().__init__(tracing.model, tracing.flow.find)
        self._of = tracing.classes.of
        self._sizes = [site.size for site in tracing.sites]
        self._site = torch.full((tracing.flow.ledger.size,), -1)
        leaves = {leaf.name: leaf for leaf in tracing.flow.leaves.values()}
        for i, site in enumerate(tracing.sites):
            member = site.members[0]
            name, dim = member.places[0]
            ids = leaves[name].dims[dim]
            assert ids is not None
            self._site[self._of[ids[member.index[:, 0]]]] = i

    def dims(self, tensor: Tensor) -> list[Dim]:
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


class _Counted(Shrinking):
    """Collects the formula of each operator that costs anything, and the MACs in all."""

    def __init__(self, tracing: Tracing) -> None:
        super().__init__(tracing)
        self.terms: list[Term] = []
        self.macs = 0

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        formula = self.find(func).macs
        if formula is not None:
            products = formula(Operands(bind(func, args, kwargs), out, self.dims))
            self.terms += [(1, dims) for dims in products]
            self.macs += total(products)
        return out
