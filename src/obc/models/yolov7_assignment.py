"""Which places of YOLOv7's maps answer for which object: anchor ratios, then SimOTA.

A place (resolution, anchor, cell) is a candidate for an object if no side of the object is four
times as long or short as the anchor's, and if the object's centre lies in the cell or the cell is
one of the two nearest to it. Among all candidates of an image, each object takes as many places as
its ten best overlaps add up to, those of least cost; the cost is the cross-entropy of its class and
3 times −log of the overlap (Ge et al., *YOLOX*, 2021, and the YOLOv7 paper). A place that two
objects want goes to the one it costs less. Unlike in the published code, a place that is a
candidate twice counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from obc.models.boxes import overlap
from obc.models.yolov7_layers import Detect

RATIO = 4.0
OVERLAPS = 10
OVERLAP_COST = 3.0
NEIGHBOURS = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))


@dataclass(frozen=True)
class Objects:
    """The objects of one image: boxes as centre, width and height in pixels [n, 4], labels [n]."""

    boxes: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Answers:
    """Places `at` (image, anchor, row, column) of one map, with the box and label asked of each."""

    at: tuple[Tensor, ...]
    boxes: Tensor
    labels: Tensor


def candidates(boxes: Tensor, anchors: Tensor, stride: int, height: int, width: int) -> Tensor:
    """Places (anchor, row, column) of one resolution that may answer for any of the boxes."""
    ratio = boxes[None, :, 2:] / (anchors[:, None] * stride)
    fits = torch.maximum(ratio, 1 / ratio).amax(-1) < RATIO
    centre = boxes[:, :2] / stride
    within = centre - centre.floor()
    steps = boxes.new_tensor(NEIGHBOURS)
    # A neighbour is near on the side of the cell on which the centre lies.
    side = torch.where(steps[:, None] < 0, 0.5 - within, within - 0.5)
    near = ((steps[:, None] == 0) | (side > 0)).all(-1)
    anchor, step, index = (fits[:, None] & near[None]).nonzero(as_tuple=True)
    column, row = (centre.floor()[index] + steps[step]).long().unbind(-1)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    places: Tensor = torch.stack([anchor, row, column], dim=-1)[inside].unique(dim=0)
    return places


def matched(predicted: Tensor, logits: Tensor, objects: Objects) -> tuple[Tensor, Tensor]:
    """Candidates that answer for an object, and which object: two index tensors.

    `predicted` are the candidates' boxes [k, 4], `logits` their objectness and classes [k, 1 + c].
    """
    if not len(predicted) or not len(objects.boxes):
        nothing = predicted.new_zeros(0, dtype=torch.long)
        return nothing, nothing
    overlaps = overlap(objects.boxes[:, None], predicted[None])
    sure = (logits[:, 1:].sigmoid() * logits[:, :1].sigmoid()).sqrt().clamp(1e-6, 1 - 1e-6)
    labels = F.one_hot(objects.labels, logits.shape[1] - 1).to(sure)
    wrong = -(labels @ sure.log().T + (1 - labels) @ (1 - sure).log().T)
    cost = wrong - OVERLAP_COST * (overlaps + 1e-8).log()
    best = overlaps.topk(min(OVERLAPS, len(predicted)), dim=1).values
    counts = best.sum(1).int().clamp(min=1)
    rank = cost.argsort(dim=1, stable=True).argsort(dim=1)
    taken = rank < counts[:, None]
    cheapest = cost.masked_fill(~taken, float("inf")).argmin(0)
    places = taken.any(0).nonzero().flatten()
    return places, cheapest[places]


def assign(
    detect: Detect, maps: Sequence[Tensor], boxes: Sequence[Tensor], objects: Sequence[Objects]
) -> list[Answers]:
    """The places of each resolution that answer for an object of their image."""
    images = [_of_image(detect, maps, boxes, i, labels) for i, labels in enumerate(objects)]
    return [_joined(answers) for answers in zip(*images, strict=True)]


def _of_image(
    detect: Detect, maps: Sequence[Tensor], boxes: Sequence[Tensor], image: int, objects: Objects
) -> list[Answers]:
    at = [
        _index(image, candidates(objects.boxes, anchors.to(objects.boxes), stride, *m.shape[2:4]))
        for m, anchors, stride in zip(maps, detect.anchors, detect.strides, strict=True)
    ]
    predicted = torch.cat([b[i][:, :4] for b, i in zip(boxes, at, strict=True)])
    logits = torch.cat([m[i][:, 4:] for m, i in zip(maps, at, strict=True)])
    places, owners = matched(predicted, logits, objects)
    answers, start = [], 0
    for index in at:
        end = start + len(index[0])
        here = (places >= start) & (places < end)
        chosen, owner = places[here] - start, owners[here]
        rows = tuple(part[chosen] for part in index)
        answers.append(Answers(rows, objects.boxes[owner], objects.labels[owner]))
        start = end
    return answers


def _index(image: int, places: Tensor) -> tuple[Tensor, ...]:
    return (places.new_full((len(places),), image), *places.unbind(-1))


def _joined(answers: Sequence[Answers]) -> Answers:
    at = tuple(torch.cat(parts) for parts in zip(*(a.at for a in answers), strict=True))
    boxes = torch.cat([a.boxes for a in answers])
    return Answers(at, boxes, torch.cat([a.labels for a in answers]))
