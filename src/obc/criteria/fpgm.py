"""FPGM: how far a structural parameter is from all others of its layer."""

from __future__ import annotations

import torch
from torch import Tensor

from obc.criteria.criterion import Criterion, register
from obc.criteria.structure import Part


@register("fpgm")
class Fpgm(Criterion):
    """S(w_m) = Σ_k ‖w_m − w_k‖ over the other slices k of its layer.

    Y. He et al., Filter Pruning via Geometric Median for Deep Convolutional Neural Networks
    Acceleration, CVPR 2019.
    """

    def measure(self, part: Part, w: Tensor, e: Tensor) -> Tensor:
        # The quick form of the distance loses half the digits where slices are alike.
        return torch.cdist(w, w, compute_mode="donot_use_mm_for_euclid_dist").sum(1)
