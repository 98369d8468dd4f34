"""The squared l2 norm of the weights."""

from __future__ import annotations

from torch import Tensor

from obc.criteria.criterion import Criterion, register
from obc.criteria.structure import Part


@register("l2")
class L2(Criterion):
    """S(w_m) = Σ_i w_i²; summed over a channel's structural parameters, the group norm.

    G. Fang et al., DepGraph: Towards Any Structural Pruning, CVPR 2023.
    """

    def measure(self, part: Part, w: Tensor, e: Tensor) -> Tensor:
        return w.square().sum(1)
