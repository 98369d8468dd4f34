"""YOLOv7's loss and assignment against loops over plain numbers."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

import obc
from obc.models.boxes import centred, complete_overlap, overlap
from obc.models.yolov7 import boxes_of, yolov7_tiny
from obc.models.yolov7_assignment import Objects, assign, candidates, matched
from obc.models.yolov7_loss import yolov7_loss
from tests.vision import import_torchvision, installed


def boxes(count: int, seed: int = 0) -> Tensor:
    low, size = torch.rand(2, count, 2, generator=torch.Generator().manual_seed(seed)).double()
    return torch.cat([64 * low, 64 * low + 4 + 30 * size], dim=-1)


@pytest.mark.torchvision
@pytest.mark.skipif(not installed("torchvision"), reason="no torchvision")
def test_overlaps_are_torchvisions() -> None:
    import_torchvision()
    from torchvision.ops import box_iou, complete_box_iou_loss

    a, b = boxes(30), boxes(30, seed=1)
    torch.testing.assert_close(
        overlap(centred(a)[:, None], centred(b)[None]), box_iou(a, b), rtol=1e-6, atol=1e-8
    )
    ours = 1 - complete_overlap(centred(a), centred(b))
    torch.testing.assert_close(ours, complete_box_iou_loss(a, b), rtol=1e-6, atol=1e-6)
    assert not torch.allclose(ours, complete_box_iou_loss(a, b.flip(0)))


def test_candidates_by_loops() -> None:
    anchors = torch.tensor([[1.0, 1.0], [2.0, 4.0]]).double()
    stride, height, width = 8, 6, 7
    truth = torch.tensor([[20.1, 9.7, 9.0, 12.0], [3.0, 46.5, 30.0, 40.0], [55.9, 1.0, 90, 9.0]])
    expected = set()
    for x, y, w, h in truth.tolist():
        near = {(0, 0), (-1 if x / 8 % 1 < 0.5 else 1, 0), (0, -1 if y / 8 % 1 < 0.5 else 1)}
        for anchor, (dx, dy) in itertools.product(range(2), near):
            aw, ah = (8 * anchors[anchor]).tolist()
            row, column = int(y // 8) + dy, int(x // 8) + dx
            fits = max(w / aw, aw / w, h / ah, ah / h) < 4
            if fits and 0 <= row < height and 0 <= column < width:
                expected.add((anchor, row, column))
    places = candidates(truth.double(), anchors, stride, height, width)
    assert {tuple(place) for place in places.tolist()} == expected
    assert len(expected) > 6


def test_matching_by_loops() -> None:
    truth = centred(boxes(4, seed=2))
    predicted = truth.repeat(7, 1)[:25] + 3 * torch.rand(25, 4).double()
    logits = torch.randn(25, 1 + 3).double()
    labels = torch.tensor([0, 2, 1, 1])
    cost, overlaps = [[0.0] * 25 for _ in range(4)], overlap(truth[:, None], predicted[None])
    for i, j in itertools.product(range(4), range(25)):
        objectness, *classes = logits[j].sigmoid().tolist()
        for label, probability in enumerate(classes):
            sure = math.sqrt(probability * objectness)
            cost[i][j] -= math.log(sure if label == labels[i] else 1 - sure)
        cost[i][j] -= 3 * math.log(float(overlaps[i, j]) + 1e-8)
    owners: dict[int, int] = {}
    for i in range(4):
        count = max(1, int(sum(sorted(overlaps[i].tolist())[-10:])))
        for j in sorted(range(25), key=lambda j, i=i: cost[i][j])[:count]:
            if j not in owners or cost[i][j] < cost[owners[j]][j]:
                owners[j] = i
    places, owner = matched(predicted, logits, Objects(truth, labels))
    assert dict(zip(places.tolist(), owner.tolist(), strict=True)) == owners
    assert len(owners) > 4 and set(owners.values()) == {0, 1, 2, 3}


def bce(logit: float, target: float) -> float:
    p = 1 / (1 + math.exp(-logit))
    return -(target * math.log(p) + (1 - target) * math.log(1 - p))


def test_the_loss_by_loops() -> None:
    model = yolov7_tiny(3, width=0.125).double().eval()
    detect = model.detect
    with torch.no_grad():
        maps = model(torch.rand(2, 3, 64, 64).double())
    targets = [
        {"boxes": boxes(3), "labels": torch.tensor([0, 1, 2])},
        {"boxes": torch.zeros(0, 4).double(), "labels": torch.zeros(0).long()},
    ]
    decoded = [
        boxes_of(m, a.double(), s)
        for m, a, s in zip(maps, detect.anchors, detect.strides, strict=True)
    ]
    objects = [Objects(centred(t["boxes"]), t["labels"]) for t in targets]
    expected = 0.0
    answers = assign(detect, maps, decoded, objects)
    assert sum(len(answer.labels) for answer in answers) >= 3
    for m, d, answer, balance in zip(maps, decoded, answers, (4.0, 1.0, 0.4), strict=True):
        asked, terms, entropies = {}, [], []
        for row, box, label in zip(zip(*answer.at), answer.boxes, answer.labels):  # noqa: B905
            place = tuple(map(int, row))
            ciou = float(complete_overlap(d[place][:4], box))
            asked[place], _ = max(0.0, ciou), terms.append(1 - ciou)
            for k, logit in enumerate(m[place][5:].tolist()):
                entropies.append(bce(logit, float(k == int(label))))
        if terms:
            expected += 0.05 * sum(terms) / len(terms)
            expected += 0.3 * 3 / 80 * sum(entropies) / len(entropies)
        places = list(itertools.product(*map(range, m.shape[:4])))
        whole = sum(bce(float(m[place][4]), asked.get(place, 0.0)) for place in places)
        expected += 0.7 * (64 / 640) ** 2 * balance * whole / len(places)
    assert float(yolov7_loss(detect, maps, targets)) == pytest.approx(expected, rel=1e-9)


def test_training_on_one_image_lowers_the_loss() -> None:
    torch.manual_seed(0)
    model = yolov7_tiny(2, width=0.125).train()
    x, target = (
        torch.rand(2, 3, 64, 64),
        {"boxes": boxes(2).float(), "labels": torch.tensor([0, 1])},
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(15):
        loss = yolov7_loss(model.detect, model(x), [target, target])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]


def test_a_class_the_network_does_not_know() -> None:
    model = yolov7_tiny(2, width=0.125)
    target = {"boxes": boxes(1).float(), "labels": torch.tensor([2])}
    with pytest.raises(obc.ObcError, match=r"labels from 2 to 2, and the network has 2 classes"):
        yolov7_loss(model.detect, model(torch.rand(1, 3, 64, 64)), [target])
