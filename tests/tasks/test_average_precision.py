"""mAP against torchmetrics, and against a loop that follows the definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from obc.errors import ObcError
from obc.models.boxes import centred, overlap
from obc.models.suppression import Detections
from obc.tasks.average_precision import Objects, average_precision
from tests.vision import import_torchvision, installed

pytestmark = pytest.mark.skipif(not installed("pycocotools"), reason="no pycocotools")


def scene(seed: int, images: int = 6) -> tuple[list[Detections], list[Objects]]:
    """Objects of three classes, and detections near them, missing, wrong or twice."""
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=random)

    found, truth = [], []
    for _ in range(images):
        low, size = 200 * draw(5, 2), 20 + 60 * draw(5, 2)
        boxes, labels = torch.cat([low, low + size], 1), (3 * draw(5)).long()
        near = boxes.repeat(2, 1) + 16 * (draw(10, 4) - 0.5)
        guesses = torch.where(draw(10) < 0.8, labels.repeat(2), (3 * draw(10)).long())
        found.append(Detections(near, draw(10), guesses))
        truth.append((boxes, labels))
    return found, truth


def by_definition(
    found: list[Detections], truth: list[Objects], label: int, threshold: float
) -> float:
    """AP of one class: 101 recalls, at each the best precision at that recall or more."""
    rows = [
        (float(s), i, b)
        for i, d in enumerate(found)
        for b, s, c in zip(*d, strict=True)
        if c == label
    ]
    rows.sort(key=lambda row: -row[0])
    mine = [b[c == label] for b, c in truth]
    taken = [[False] * len(b) for b in mine]
    right = []
    for _, image, box in rows:
        best, place = threshold, -1
        for k, other in enumerate(mine[image]):
            value = float(overlap(centred(box.double()), centred(other.double())))
            if not taken[image][k] and value >= best:
                best, place = value, k
        right.append(place >= 0)
        if place >= 0:
            taken[image][place] = True
    count = sum(map(len, mine))
    points = [(sum(right[:n]) / count, sum(right[:n]) / n) for n in range(1, len(right) + 1)]
    recalls = np.linspace(0, 1, 101)  # whose last bits decide where a recall is met exactly
    best_at = [max((p for r, p in points if r >= q), default=0) for q in recalls]
    return sum(best_at) / 101


@pytest.mark.parametrize("seed", range(3))
def test_by_definition(seed: int) -> None:
    found, truth = scene(seed)
    precision = average_precision(found, truth, 4)
    assert sorted(precision.classes) == [0, 1, 2]  # the fourth class does not occur
    for label, (half, mean) in precision.classes.items():
        thresholds = [0.5 + 0.05 * n for n in range(10)]
        each = [by_definition(found, truth, label, t) for t in thresholds]
        assert (half, mean) == pytest.approx((each[0], sum(each) / 10), abs=1e-6)
        assert 0.05 < mean < half < 1
    halves, means = zip(*precision.classes.values(), strict=True)
    assert precision.at_half == pytest.approx(sum(halves) / 3)
    assert precision.mean == pytest.approx(sum(means) / 3)


@pytest.mark.torchvision
@pytest.mark.skipif(not installed("torchmetrics"), reason="no torchmetrics")
def test_as_torchmetrics() -> None:
    import_torchvision()
    from torchmetrics.detection import MeanAveragePrecision

    found, truth = scene(7)
    # Its own recalls are rounded to float32, so that one that is met exactly may count or not.
    recalls, overlaps = np.linspace(0, 1, 101).tolist(), np.linspace(0.5, 0.95, 10).tolist()
    metric = MeanAveragePrecision(
        class_metrics=True, rec_thresholds=recalls, iou_thresholds=overlaps
    )
    metric.update(
        [{"boxes": d.boxes, "scores": d.scores, "labels": d.labels} for d in found],
        [{"boxes": boxes, "labels": labels} for boxes, labels in truth],
    )
    theirs, ours = metric.compute(), average_precision(found, truth, 3)
    assert ours.at_half == pytest.approx(float(theirs["map_50"]), abs=1e-6)
    assert ours.mean == pytest.approx(float(theirs["map"]), abs=1e-6)
    each = [mean for _, mean in ours.classes.values()]
    assert each == pytest.approx(theirs["map_per_class"].tolist(), abs=1e-6)
    worse = [d._replace(scores=-d.scores) for d in found]
    assert average_precision(worse, truth, 3).mean != pytest.approx(ours.mean, abs=1e-3)


def test_nothing_found_and_nothing_to_find() -> None:
    _, truth = scene(0)
    nothing = Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.long))
    empty = average_precision([nothing] * len(truth), truth, 3)
    assert (empty.at_half, empty.mean) == (0.0, 0.0) and len(empty.classes) == 3
    with pytest.raises(ObcError, match="no boxes to measure a detector by"):
        average_precision([nothing], [(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))], 3)
