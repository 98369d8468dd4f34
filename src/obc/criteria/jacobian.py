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
    """S(w_m) = sum over rows n of (w_m . g_m(n))^2, with no normalisation.

    `block="group"` takes the whole channel group as one block of J^T J, cross terms between
    layers included; "member" is the paper's sum over members. `diagonal_norm=True` drops the
    cross term between a norm's scale and shift. `rows="sample"` has a row for each sample.
    """

    evidence = "product"

    def __init__(
        self,
        rows: Literal["batch", "sample"] = "batch",
        block: Literal["member", "group"] = "member",
        diagonal_norm: bool = False,
    ) -> None:
        for name, value, allowed in (
            ("rows", rows, ("batch", "sample")),
            ("block", block, ("member", "group")),
        ):
            if value not in allowed:
                raise ObcError(f"{name} must be one of {', '.join(allowed)}, not '{value}'")
        if block == "group" and diagonal_norm:
            raise ObcError("diagonal_norm drops a term of single members; use block='member'")
        self.rows = rows
        self.block = block
        self.diagonal_norm = diagonal_norm

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
