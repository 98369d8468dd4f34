"""What an operator costs: multiply-accumulates as sums of products of dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Dim:
    """A dimension: its full size, and by how much each removed channel of a site shortens it."""

    size: int
    rate: tuple[tuple[int, int], ...] = ()


def plain_dims(tensor: Tensor) -> list[Dim]:
    """The dimensions of a tensor as they are now."""
    return [Dim(n) for n in tensor.shape]


@dataclass(frozen=True)
class Operands:
    """The arguments and the output of one call, as the formula of its cost sees them."""

    args: Mapping[str, Any]
    out: Any
    measure: Callable[[Tensor], list[Dim]] = plain_dims

    def __getitem__(self, name: str) -> Any:
        return self.args.get(name)

    def dims(self, name: str) -> list[Dim]:
        """The dimensions of an argument."""
        return self.measure(self.args[name])


Formula = Callable[[Operands], list[list[Dim]]]
"""From the operands of a call to the products of dimensions whose sum are its MACs."""


def total(products: list[list[Dim]]) -> int:
    """The sum of products at full size.

    >>> total([[Dim(2), Dim(3)], [Dim(4)]])
    10
    """
    return sum(math.prod(dim.size for dim in dims) for dims in products)


def matrix_product(left: str, right: str) -> Formula:
    """MACs of `a @ b` for arguments of these names: batch x rows x inner x columns."""

    def formula(operands: Operands) -> list[list[Dim]]:
        a, b = operands.dims(left), operands.dims(right)
        batch = [_shared(a[0], b[0])] if len(a) == 3 else []
        return [[*batch, a[-2], _shared(a[-1], b[-2]), b[-1]]]

    return formula


def linear(operands: Operands) -> list[list[Dim]]:
    """MACs of `x @ weight.T`: the positions of x x inputs x outputs."""
    x, weight = operands.dims("input"), operands.dims("weight")
    return [[*x[:-1], _shared(x[-1], weight[-1]), *weight[:-1]]]


def convolution(operands: Operands) -> list[list[Dim]]:
    """MACs of a convolution: batch x weight x positions, of the input if it is transposed."""
    x, weight = operands.dims("input"), operands.dims("weight")
    positions = x[2:] if operands["transposed"] else plain_dims(operands.out)[2:]
    return [[x[0], *weight, *positions]]


def attention(operands: Operands) -> list[list[Dim]]:
    """MACs of the scores, queries x keys x width, and of what they weigh."""
    query, key, value = (operands.dims(name) for name in ("query", "key", "value"))
    scores = [*query[:-1], key[-2]]
    return [[*scores, _shared(query[-1], key[-1])], [*scores, value[-1]]]


def recurrence(operands: Operands) -> list[list[Dim]]:
    """MACs of a recurrent layer: every step reads both of its weights."""
    steps = operands.dims("input")[:-1]
    return [[*steps, *operands.dims(weight)] for weight in ("weight0", "weight1")]


def _shared(a: Dim, b: Dim) -> Dim:
    """Two dimensions that meet in a product are of one length; one of them may not know why."""
    return a if a.rate else b
