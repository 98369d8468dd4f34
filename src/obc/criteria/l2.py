"""The squared l2 norm of the weights."""

from __future__ import annotations

from torch import Tensor

from obc.criteria.criterion import Criterion, register
from obc.criteria.structure import Part


@register("l2")
class L2(Criterion):
    """S(w_m) = sum of w_i^2."""

    def measure(self, part: Part, w: Tensor, e: Tensor) -> Tensor:
        return w.square().sum(1)
