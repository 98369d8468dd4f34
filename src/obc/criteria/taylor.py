"""The Taylor criterion: each weight by itself, the diagonal of JᵀJ."""

from __future__ import annotations

from torch import Tensor

from obc.criteria.criterion import Criterion, register
from obc.criteria.structure import Part


@register("taylor")
class Taylor(Criterion):
    """S(w_m) = Σ_n Σ_i (w_i g_i⁽ⁿ⁾)², over rows n of J and weights i.

    P. Molchanov et al., Importance Estimation for Neural Network Pruning, CVPR 2019.
    """

    evidence = "gradient"

    def measure(self, part: Part, w: Tensor, e: Tensor) -> Tensor:
        return (w * e).square().sum(1)
