"""How far the outputs of one model are from those of another, and whether they say anything."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from obc.errors import ObcError


class NothingToCompare(ObcError):
    """Two models may or may not differ: there is no number that would show it."""


class Differs(ObcError):
    """Two models put out other numbers, by more than rounding commonly is."""


def difference(reference: Sequence[Tensor], outputs: Sequence[Tensor], bare: bool = False) -> float:
    """The largest relative error over all outputs; an error if it is more than rounding.

    Outputs without a single finite floating-point number are an error too, unless they may be
    `bare`: there is nothing to compare. On the meta device there are no numbers at all, and only
    shapes are compared.

    >>> difference([torch.tensor([1.0, 2.0])], [torch.tensor([1.0, 2.0])])
    0.0
    """
    if [t.shape for t in reference] != [t.shape for t in outputs]:
        raise ObcError(
            f"the pruned model puts out {[tuple(t.shape) for t in outputs]} "
            f"instead of {[tuple(t.shape) for t in reference]}"
        )
    if not bare and not any(t.is_meta or numbers(t) for t in reference):
        raise NothingToCompare(
            "there is nothing to compare: the outputs hold no finite floating-point number; give "
            "an example, and weights, for which they do"
        )
    return max((error(a, b) for a, b in zip(reference, outputs, strict=True)), default=0.0)


def error(a: Tensor, b: Tensor, where: str = "") -> float:
    """The largest relative error of one tensor against another; an error beyond rounding."""
    worst = _distance(a, b)
    if a.is_floating_point() or a.is_complex():
        if not worst <= torch.finfo(a.dtype).eps ** 0.5:
            raise Differs(
                f"the pruned model differs from the masked original by {worst:.2g}{where}"
            )
    elif worst:
        raise ObcError(f"the pruned model puts out other whole numbers{where}, {worst:.0%}")
    return worst


def distance(reference: Sequence[Tensor], outputs: Sequence[Tensor]) -> float:
    """The largest relative error over all outputs, however large; infinite for other shapes.

    >>> distance([torch.tensor([1.0, 2.0])], [torch.tensor([1.0, 5.0])])
    1.0
    """
    if [t.shape for t in reference] != [t.shape for t in outputs]:
        return math.inf
    return max((_distance(a, b) for a, b in zip(reference, outputs, strict=True)), default=0.0)


def _distance(a: Tensor, b: Tensor) -> float:
    """The largest relative error of one tensor against another of its shape.

    Of whole numbers the share that differs, if it is above a hundredth: rounding may decide
    between two. Infinite where one has a finite number and the other has not.
    """
    if a.is_meta or not a.numel():
        return 0.0
    a, b = _plain(a), _plain(b)
    if not a.is_floating_point():
        share = float((a != b).double().mean())
        return share if share > 0.01 else 0.0
    finite = torch.isfinite(a)
    if not torch.equal(finite, torch.isfinite(b)):
        return math.inf
    return _relative(a[finite].double(), b[finite].double())


def numbers(tensor: Tensor) -> int:
    """How many finite floating-point numbers there are to compare.

    >>> numbers(torch.tensor([1.0, float("nan")])), numbers(torch.tensor([1, 2]))
    (1, 0)
    """
    if tensor.is_meta or not (tensor.is_floating_point() or tensor.is_complex()):
        return 0
    return int(torch.isfinite(_plain(tensor)).sum())


def _plain(tensor: Tensor) -> Tensor:
    """Real numbers, all of them there: of complex ones both parts, of sparse ones the zeros."""
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    return torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense


def _relative(a: Tensor, b: Tensor) -> float:
    """Each number is measured by itself and by the middle one, so that no giant hides the rest."""
    if not a.numel():
        return 0.0
    size = a.abs()
    middle = size[size > 0].median() if (size > 0).any() else size.new_tensor(1e-30)
    return float(((a - b).abs() / (size + middle)).max())
