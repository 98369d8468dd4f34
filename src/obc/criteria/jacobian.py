"""The Jacobian Criterion: how much the losses change, to first order, when a channel goes."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from obc.criteria.criterion import Criterion, register
from obc.criteria.structure import Part
from obc.errors import ObcError


@register("jacobian")
class Jacobian(Criterion):
    """S(w_m) = w_mᵀ J_mᵀ J_m w_m = Σ_n (w_m · g_m⁽ⁿ⁾)², with no normalisation.

    g⁽ⁿ⁾, row n of J, is the gradient of batch n's mean loss; the model is in eval mode. The score
    of a channel is the sum of its structural parameters' S. docs/method.md says how that is
    computed without any gradient of a weight.

    S. Chen et al., Optimal Brain Connection: Towards Efficient Structural Pruning.

    Args:
        block: "member" sums over structural parameters, as the paper does; "group" takes the
            whole channel group as one block of JᵀJ, (Σ_m w_m · g_m)², cross terms between
            layers included.
        diagonal_norm: drop the cross term 2 γ ∂γ β ∂β of a norm's scale and shift, the paper's
            ablation.
        per_sample: a row for each single sample instead of each batch.
    """

    evidence = "product"

    def __init__(
        self,
        block: Literal["member", "group"] = "member",
        diagonal_norm: bool = False,
        per_sample: bool = False,
    ) -> None:
        if block not in ("member", "group"):
            raise ObcError(f"block must be one of member, group, not '{block}'")
        if not isinstance(per_sample, bool):
            raise ObcError(f"per_sample must be True or False, not {per_sample!r}")
        if block == "group" and diagonal_norm:
            raise ObcError("diagonal_norm drops a term of single members; use block='member'")
        self.block = block
        self.diagonal_norm = diagonal_norm
        self.per_sample = per_sample

    def measure(self, part: Part, w: Tensor, e: Tensor) -> Tensor:
        """`e` is [rows, size, tensors]: the products of a part's tensors, apart."""
        if self.diagonal_norm and part.role == "norm":
            return e.square().sum((0, 2))
        return e.sum(2).square().sum(0)

    def site(self, parts: list[tuple[Part, Tensor, Tensor]]) -> Tensor:
        if self.block == "member":
            return super().site(parts)
        total = torch.stack([e.sum(2) for _, _, e in parts]).sum(0)
        return total.square().sum(0, keepdim=True)
