"""The scale of the norm layer behind a channel."""

from __future__ import annotations

import torch
from torch import Tensor

from obc.criteria.criterion import Criterion, register
from obc.criteria.structure import Part


@register("bn_scale")
class BnScale(Criterion):
    """S = |γ_c|, for sites with a norm layer; all others score infinity and stay.

    Z. Liu et al., Learning Efficient Convolutional Networks through Network Slimming, ICCV 2017.
    """

    def site(self, parts: list[tuple[Part, Tensor, Tensor]]) -> Tensor:
        scales = []
        for part, w, _ in parts:
            widths = [m.index.shape[1] for m in part.members]  # scales and shifts are vectors
            is_norm = part.role == "norm" and sum(widths) == w.shape[1]
            for member, vector in zip(
                part.members, w.split(widths, 1) if is_norm else (), strict=False
            ):
                if member.param.endswith("weight"):
                    scales.append(vector.abs().sum(1))
        return torch.stack(scales) if scales else w.new_full((1, parts[0][0].size), torch.inf)
