"""WHC: the norm of a structural parameter, weighted by how dissimilarity the others it is."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from obc.criteria.criterion import Criterion, register
from obc.criteria.structure import Part


@register("whc")
class Whc(Criterion):
    """S(w_m) = ‖w_m‖ Σ_k ‖w_k‖ (1 − |cos(w_m, w_k)|) over the other slices k of its layer.

    S. Chen et al., WHC: Weighted Hybrid Criterion for Filter Pruning on Convolutional Neural
    Networks, ICASSP 2023.
    """

    def measure(self, part: Part, w: Tensor, e: Tensor) -> Tensor:
        norm: Tensor = w.norm(dim=1)
        unit = functional.normalize(w, dim=1)
        dissimilarity: Tensor = (1 - (unit @ unit.t()).abs()).clamp_min(0)
        dissimilarity.fill_diagonal_(0)
        return norm * (dissimilarity @ norm)
