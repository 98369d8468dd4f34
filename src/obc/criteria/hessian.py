"""The Hessian criterion with the diagonal Fisher information of single samples."""

from __future__ import annotations

from torch import Tensor

from obc.criteria.criterion import Criterion, register
from obc.criteria.structure import Part


@register("hessian")
class Hessian(Criterion):
    """S(w_m) = Σ_i w_i² h_ii, with h_ii = Σ over single samples of g_i².

    The saliency of Y. LeCun et al., Optimal Brain Damage, NeurIPS 1989, with the Fisher
    information in place of the Hessian as in L. Liu et al., Group Fisher Pruning for Practical
    Network Compression, ICML 2021.
    """

    evidence = "square"
    per_sample = True

    def measure(self, part: Part, w: Tensor, e: Tensor) -> Tensor:
        return (w.square() * e).sum(1)
