"""The Taylor criterion: every weight on its own, the diagonal of J^T J."""

from __future__ import annotations

from torch import Tensor

from obc.criteria.criterion import Criterion, register
from obc.criteria.structure import Part


@register("taylor")
class Taylor(Criterion):
    """S(w_m) = sum over rows n and weights i of (w_i g_i(n))^2."""

    evidence = "gradient"

    def measure(self, part: Part, w: Tensor, e: Tensor) -> Tensor:
        return (w * e).square().sum(1)
