"""The Jacobian Criterion: how much the losses change, to first order, when a channel goes."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from obc.criteria.criterion import Criterion, register
from obc.criteria.structure import Part
from obc.errors import ObcError
from obc.running.checks import check_flag


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
        expected: what rows like these batches have on average, from their single samples. For
            sᵢ = w · gᵢ of mean μ and variance σ², a row of B samples has E[(mean of B)²] =
            μ² + σ²/B. With n samples in all, of mean m and unbiased variance v, m² − v/n is an
            unbiased estimate of μ², so N (m² + v (1/B − 1/n)) is one of the sum over N rows. All
            samples of all batches count alike, so it takes several times fewer batches to rank
            as many rows would.
    """

    evidence = "product"

    def __init__(
        self,
        block: Literal["member", "group"] = "member",
        diagonal_norm: bool = False,
        per_sample: bool = False,
        expected: bool = False,
    ) -> None:
        if block not in ("member", "group"):
            raise ObcError(f"block must be one of member, group, not '{block}'")
        check_flag("per_sample", per_sample)
        check_flag("expected", expected)
        check_flag("diagonal_norm", diagonal_norm)
        if expected and (per_sample or diagonal_norm):
            raise ObcError("expected=True is about rows of batches and whole members")
        if block == "group" and diagonal_norm:
            raise ObcError("diagonal_norm drops a term of single members; use block='member'")
        self.block = block
        self.diagonal_norm = diagonal_norm
        self.expected = expected
        self.per_sample = per_sample or expected

    def measure(self, part: Part, w: Tensor, e: Tensor) -> Tensor:
        """`e` is [rows, size, tensors]: the products of a part's tensors, apart."""
        if self.diagonal_norm and part.role == "norm":
            return e.square().sum((0, 2))
        return e.sum(2).square().sum(0)

    def site(self, parts: list[tuple[Part, Tensor, Tensor]]) -> Tensor:
        if self.block == "member" and not self.expected:
            return super().site(parts)
        products = torch.stack([e.sum(2) for _, _, e in parts])
        if self.block == "group":
            products = products.sum(0, keepdim=True)
        if not self.expected:
            return products.square().sum(1)
        powers = [torch.ones_like(products), products, products.square()]
        return torch.stack([power.sum(1) for power in powers], 1).flatten(0, 1)

    def scores(self, sums: Tensor, rows: int) -> Tensor:
        if not self.expected:
            return sums
        count, first, second = sums.unflatten(0, (-1, 3)).unbind(1)
        mean = first / count
        variance = (second - first * mean) / (count - 1).clamp_min(1)
        score: Tensor = rows * (mean.square() + variance.clamp_min(0) * (rows - 1) / count)
        return score
