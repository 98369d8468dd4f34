"""The loss that YOLOv7 is trained with: box, objectness and class, over the assigned places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from obc.errors import ObcError
from obc.models.boxes import centred, complete_overlap
from obc.models.yolov7 import boxes_of
from obc.models.yolov7_assignment import Objects, assign
from obc.models.yolov7_layers import Detect

BALANCE = (4.0, 1.0, 0.4)  # of objectness at strides 8, 16 and 32


@dataclass(frozen=True)
class Gains:
    """Weights of the three terms, for 80 classes and 640 pixels."""

    box: float = 0.05
    objectness: float = 0.7
    label: float = 0.3


GAINS = Gains()
TINY_GAINS = Gains(objectness=1.0, label=0.5)


def yolov7_loss(
    detect: Detect,
    maps: Sequence[Tensor],
    targets: Sequence[Mapping[str, Tensor]],
    gains: Gains = GAINS,
) -> Tensor:
    """Box (1 − CIoU), objectness and class (binary cross-entropies) of one batch.

    `maps` are the network's outputs, `targets` has for each image `boxes` [n, 4], two corners in
    pixels, and `labels` [n], as torchvision's detectors take them. The places that answer for an
    object are chosen by `yolov7_assignment`; the objectness asked of them is their CIoU, of all
    other places 0. As published, the class term grows with the classes (over 80) and objectness
    with the pixels (over 640²). The published code multiplies by the number of images; here it is
    a mean, so that batches of any size compare.

    >>> from obc.models.yolov7 import yolov7_tiny
    >>> model = yolov7_tiny(3, width=0.25)
    >>> boxes = {"boxes": torch.tensor([[8.0, 8, 40, 40]]), "labels": torch.tensor([2])}
    >>> loss = yolov7_loss(model.detect, model(torch.rand(1, 3, 64, 64)), [boxes])
    >>> bool(loss > 0)
    True
    """
    objects = [_objects(target, detect.classes, maps[0]) for target in targets]
    boxes = [
        boxes_of(m, anchors, stride)
        for m, anchors, stride in zip(maps, detect.anchors, detect.strides, strict=True)
    ]
    with torch.no_grad():
        answers = assign(detect, maps, boxes, objects)
    pixels = maps[0].shape[2] * maps[0].shape[3] * detect.strides[0] ** 2
    label_gain = gains.label * detect.classes / 80
    objectness_gain = gains.objectness * pixels / 640**2
    total = maps[0].new_zeros(())
    for m, decoded, answer, balance in zip(maps, boxes, answers, BALANCE, strict=True):
        asked = torch.zeros_like(m[..., 4])
        if len(answer.boxes):
            ciou = complete_overlap(decoded[answer.at][:, :4], answer.boxes)
            asked[answer.at] = ciou.detach().clamp(min=0)
            total = total + gains.box * (1 - ciou).mean()
            total = total + label_gain * _label_loss(m[answer.at][:, 5:], answer.labels)
        entropy = F.binary_cross_entropy_with_logits(m[..., 4], asked)
        total = total + objectness_gain * balance * entropy
    return total


def _label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    if logits.shape[1] == 1:
        return logits.new_zeros(())  # objectness says it all
    truth = F.one_hot(labels, logits.shape[1]).to(logits)
    return F.binary_cross_entropy_with_logits(logits, truth)


def _objects(target: Mapping[str, Tensor], classes: int, like: Tensor) -> Objects:
    labels = target["labels"].to(like.device)
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ObcError(
            f"labels from {int(labels.min())} to {int(labels.max())}, and the network has "
            f"{classes} classes: they must lie in 0 … {classes - 1}"
        )
    return Objects(centred(target["boxes"].to(like)), labels)
