"""Non-maximum suppression in plain torch: of boxes that overlap, the surest stays."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from obc.models.boxes import centred, overlap

CONFIDENCE, OVERLAP = 0.001, 0.65  # as detectors are scored by mAP
_CANDIDATES, MOST = 1000, 100  # boxes of an image before and after


class Detections(NamedTuple):
    """Detections of one image, surest first: corners in pixels [n, 4], scores [n], labels [n]."""

    boxes: Tensor
    scores: Tensor
    labels: Tensor


def suppressed(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Indices of the boxes (two corners) that stay, surest first: greedy suppression.

    Box j, in falling order of scores, stays unless an earlier box that stays overlaps it by more
    than the threshold. That recursion has one fixed point, which is reached from "all stay" after
    as many rounds as the longest chain of boxes that suppress each other.

    >>> boxes = torch.tensor([[0.0, 0, 10, 10], [1.0, 0, 11, 10], [20.0, 0, 30, 10]])
    >>> suppressed(boxes, torch.tensor([0.8, 0.9, 0.1]), 0.5).tolist()
    [1, 2]
    """
    order = scores.argsort(descending=True, stable=True)
    middles = centred(boxes[order])
    covers = (overlap(middles[:, None], middles[None]) > threshold).triu(1)
    kept = torch.ones(len(order), dtype=torch.bool, device=boxes.device)
    while True:
        stays = ~(covers & kept[:, None]).any(0)
        if torch.equal(stays, kept):
            return order[kept]
        kept = stays


def detections(boxes: Tensor, probabilities: Tensor) -> Detections:
    """Boxes (two corners) with a probability for each class [n, c], suppressed class by class.

    >>> boxes = torch.tensor([[0.0, 0, 10, 10], [1.0, 0, 11, 10]])
    >>> detections(boxes, torch.tensor([[0.8, 0.0], [0.9, 0.3]])).labels.tolist()
    [0, 1]
    """
    place, label = (probabilities > CONFIDENCE).nonzero(as_tuple=True)
    scores = probabilities[place, label]
    best = scores.topk(min(_CANDIDATES, len(scores))).indices
    corners, scores, label = boxes[place[best]], scores[best], label[best]
    # Boxes of other classes are moved out of reach.
    span = corners.max() - corners.min() + 1 if len(corners) else 0
    apart = corners + label[:, None] * span
    kept = suppressed(apart, scores, OVERLAP)[:MOST]
    return Detections(corners[kept], scores[kept], label[kept])
