"""Boxes as centre, width and height: how much they overlap."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def centred(corners: Tensor) -> Tensor:
    """Boxes given by two corners (x1, y1, x2, y2) as centre, width and height.

    >>> centred(torch.tensor([[2.0, 2.0, 6.0, 4.0]]))
    tensor([[4., 3., 4., 2.]])
    """
    low, high = corners[..., :2], corners[..., 2:]
    return torch.cat([(low + high) / 2, high - low], dim=-1)


def cornered(boxes: Tensor) -> Tensor:
    """Boxes given by centre, width and height as two corners (x1, y1, x2, y2).

    >>> cornered(torch.tensor([[4.0, 3.0, 4.0, 2.0]]))
    tensor([[2., 2., 6., 4.]])
    """
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([centre - half, centre + half], dim=-1)


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of boxes, broadcast."""
    low = torch.maximum(a[..., :2] - a[..., 2:] / 2, b[..., :2] - b[..., 2:] / 2)
    high = torch.minimum(a[..., :2] + a[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2)
    both = (high - low).clamp(min=0).prod(-1)
    return both / (a[..., 2:].prod(-1) + b[..., 2:].prod(-1) - both + 1e-7)


def complete_overlap(a: Tensor, b: Tensor) -> Tensor:
    """CIoU (Zheng et al. 2020): IoU − ρ²/c² − αv.

    ρ is the distance of the centres, c the diagonal of the smallest box around both,
    v = 4/π² (arctan(w_b/h_b) − arctan(w_a/h_a))², and α = v / (1 − IoU + v), taken as a constant.
    """
    low = torch.minimum(a[..., :2] - a[..., 2:] / 2, b[..., :2] - b[..., 2:] / 2)
    high = torch.maximum(a[..., :2] + a[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2)
    diagonal = (high - low).square().sum(-1) + 1e-7
    distance = (a[..., :2] - b[..., :2]).square().sum(-1)
    angles = [torch.atan(box[..., 2] / (box[..., 3] + 1e-7)) for box in (a, b)]
    v = 4 / math.pi**2 * (angles[1] - angles[0]).square()
    iou = overlap(a, b)
    with torch.no_grad():
        alpha = v / (1 - iou + v + 1e-7)
    return iou - distance / diagonal - alpha * v
