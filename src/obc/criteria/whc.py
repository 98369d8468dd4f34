"""WHC: the norm of a structural parameter, weighted by how unlike the others it is."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from obc.criteria.criterion import Criterion, register
from obc.criteria.structure import Part


@register("whc")
class Whc(Criterion):
    """S(w_m) = |w_m| sum over k of |w_k| (1 - |cos(w_m, w_k)|)."""

    def measure(self, part: Part, w: Tensor, e: Tensor) -> Tensor:
        norm: Tensor = w.norm(dim=1)
        unit = functional.normalize(w, dim=1)
        unlike: Tensor = (1 - (unit @ unit.t()).abs()).clamp_min(0)
        unlike.fill_diagonal_(0)
        return norm * (unlike @ norm)
