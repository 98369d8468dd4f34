"""Mean average precision, as pycocotools computes it for COCO."""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from obc.errors import ObcError
from obc.models.suppression import Detections

Objects = tuple[Tensor, Tensor]  # boxes as two corners [n, 4], labels [n]


@dataclass(frozen=True)
class Precision:
    """mAP over all classes that occur, and (AP at 0.5, AP over 0.5 … 0.95) of each of them."""

    at_half: float
    mean: float
    classes: dict[int, tuple[float, float]]


def average_precision(
    found: Sequence[Detections], truth: Sequence[Objects], classes: int
) -> Precision:
    """AP = mean over 101 recalls of the best precision at that recall or more (Lin et al., 2014).

    A detection is right if it overlaps an object of its class that no surer one has taken, by at
    least the threshold: 0.5, or the mean over 0.5, 0.55 … 0.95. At most 100 detections of an image
    count, and classes without objects do not.

    >>> box, label = torch.tensor([[0.0, 0, 10, 10]]), torch.tensor([1])
    >>> found = average_precision([Detections(box, torch.ones(1), label)], [(box, label)], 3)
    >>> round(found.mean, 6), list(found.classes)
    (1.0, [1])
    """
    objects: list[dict[str, Any]] = [
        {"image_id": i, "category_id": int(label), "bbox": box, "area": box[2] * box[3]}
        for i, (boxes, labels) in enumerate(truth)
        for box, label in zip(_sided(boxes), labels.tolist(), strict=True)
    ]
    if not objects:
        raise ObcError("there are no boxes to measure a detector by")
    answers = [
        {"image_id": i, "category_id": label, "bbox": box, "score": score}
        for i, own in enumerate(found)
        for box, score, label in zip(
            _sided(own.boxes), own.scores.tolist(), own.labels.tolist(), strict=True
        )
    ]
    if not answers:
        return Precision(
            0.0, 0.0, {c: (0.0, 0.0) for c in sorted({o["category_id"] for o in objects})}
        )
    precision = _accumulated(objects, answers, len(truth), classes)
    per_class = {
        c: (float(own[0].mean()), float(own.mean()))
        for c, own in enumerate(precision.unbind(2))
        if bool((own > -1).all())  # −1 marks a class without objects
    }
    halves, means = zip(*per_class.values(), strict=True)
    count = len(per_class)
    return Precision(sum(halves) / count, sum(means) / count, per_class)


def _accumulated(
    objects: list[dict[str, Any]], answers: list[dict[str, Any]], images: int, classes: int
) -> Tensor:
    """Precisions [thresholds, recalls, classes] by pycocotools."""
    try:
        coco, evaluation = (
            importlib.import_module(f"pycocotools.{m}") for m in ("coco", "cocoeval")
        )
    except ImportError:
        raise ObcError(
            "pycocotools is not installed: pip install 'obc[detection]'",
            section="what-is-not-installed",
        ) from None
    truth = coco.COCO()
    truth.dataset = {
        "info": {},
        "images": [{"id": i} for i in range(images)],
        "categories": [{"id": c} for c in range(classes)],
        "annotations": [{"id": n, "iscrowd": 0, **o} for n, o in enumerate(objects, 1)],
    }
    with contextlib.redirect_stdout(io.StringIO()):  # it talks
        truth.createIndex()
        judge = evaluation.COCOeval(truth, truth.loadRes(answers), "bbox")
        judge.params.areaRng, judge.params.areaRngLbl = [[0, 1e10]], ["all"]
        judge.params.maxDets = [100]
        judge.evaluate()
        judge.accumulate()
    return torch.from_numpy(judge.eval["precision"])[:, :, :, 0, 0]


def _sided(corners: Tensor) -> list[list[float]]:
    """Corner, width and height of each box."""
    low, high = corners.double().split(2, dim=-1)
    sides: list[list[float]] = torch.cat([low, high - low], -1).tolist()
    return sides
