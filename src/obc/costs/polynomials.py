"""Sums of products of dimensions: what a cost is as a function of the channels that are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from obc.tracing.rules.products import Dim

Term = tuple[int, Sequence[Dim]]
"""A factor and the dimensions that it is multiplied with."""

Key = tuple[Dim, ...]
_CHUNK = 1 << 22  # numbers that are worked on at once


def collected(term: Term) -> tuple[Key, int]:
    """A term's dimensions that shrink, in a fixed order, and the product of all else."""
    factor, dims = term
    for dim in dims:
        if not dim.rate:
            factor *= dim.size
    moving = (dim for dim in dims if dim.rate)
    return tuple(sorted(moving, key=lambda dim: (dim.rate, dim.size))), factor


class Monomials:
    """Products of dimensions, each by itself, for many choices of counts at once."""

    def __init__(self, keys: Sequence[Key], sizes: Sequence[int]) -> None:
        self._sizes = torch.tensor(sizes)
        width = max((len(dims) for dims in keys), default=0)
        self._full = torch.ones(len(keys), width, dtype=torch.float64)
        self._rate = torch.zeros(len(keys), width, len(sizes), dtype=torch.float64)
        for k, dims in enumerate(keys):
            for d, dim in enumerate(dims):
                self._full[k, d] = dim.size
                for site, rate in dim.rate:
                    self._rate[k, d, site] = rate

    def values(self, counts: Tensor) -> Iterator[Tensor]:
        """The products for some rows of counts after the other, [rows, keys]: whole numbers."""
        removed = (self._sizes - counts).double()
        keys, width, sites = self._rate.shape
        for rows in removed.split(max(1, _CHUNK // max(1, keys * width))):
            lost = rows @ self._rate.view(keys * width, sites).T
            dims = self._full - lost.view(-1, keys, width)
            yield dims.round().long().prod(2)


class Products:
    """A sum of products of dimensions.

    >>> macs = Products([(9, [Dim(16, ((0, 1),)), Dim(8, ((1, 1),))])], [16, 8])
    >>> macs(torch.tensor([[16, 8], [4, 8], [4, 2]]))
    tensor([1152,  288,   72])
    """

    def __init__(self, terms: Sequence[Term], sizes: Sequence[int]) -> None:
        factors: dict[Key, int] = {}
        for key, factor in map(collected, terms):
            factors[key] = factors.get(key, 0) + factor
        self._factor = torch.tensor(list(factors.values()), dtype=torch.long)
        self._monomials = Monomials(list(factors), sizes)

    def __call__(self, counts: Tensor) -> Tensor:
        """The value for each row of counts, [rows, sites] to [rows]: whole numbers, exact."""
        return torch.cat([(m * self._factor).sum(1) for m in self._monomials.values(counts)])


class Peak:
    """The largest of many sums of products, such as the bytes held at each moment of a run.

    `moments` has a row for each moment and a column for each key: the factors of the products.

    >>> narrow, wide = (Dim(4, ((0, 1),)),), (Dim(8, ((1, 2),)),)
    >>> peak = Peak([narrow, wide], torch.tensor([[3, 0], [0, 1]]), [4, 4])
    >>> peak(torch.tensor([[4, 4], [1, 4], [1, 1]]))
    tensor([12,  8,  3])
    """

    def __init__(self, keys: Sequence[Key], moments: Tensor, sizes: Sequence[int]) -> None:
        self._moments = moments.double().T
        self._monomials = Monomials(keys, sizes)

    def __call__(self, counts: Tensor) -> Tensor:
        """The value for each row of counts, [rows, sites] to [rows]: whole numbers, exact."""
        sums = (m.double() @ self._moments for m in self._monomials.values(counts))
        return torch.cat([s.amax(1).round().long() for s in sums])
