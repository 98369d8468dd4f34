"""The l1 norm of the weights."""

from __future__ import annotations

from torch import Tensor

from obc.criteria.criterion import Criterion, register
from obc.criteria.structure import Part


@register("l1")
class L1(Criterion):
    """S(w_m) = Σ_i |w_i|.

    H. Li et al., Pruning Filters for Efficient ConvNets, ICLR 2017.
    """

    def measure(self, part: Part, w: Tensor, e: Tensor) -> Tensor:
        return w.abs().sum(1)
