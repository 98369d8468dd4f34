"""The Hessian criterion with the diagonal Fisher information of single samples."""

from __future__ import annotations

from torch import Tensor

from obc.criteria.criterion import Criterion, register
from obc.criteria.structure import Part


@register("hessian")
class Hessian(Criterion):
    """S(w_m) = sum over weights i of w_i^2 h_ii, h_ii the sum over samples of g_i^2."""

    evidence = "square"
    per_sample = True

    def measure(self, part: Part, w: Tensor, e: Tensor) -> Tensor:
        return (w.square() * e).sum(1)
