"""Detection: losses and boxes of each library, one that learns, and what pruning does with it."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import obc
from obc.data.boxed import ABSENT, Boxed
from obc.errors import ObcError
from obc.models.suppression import Detections
from obc.models.yolov7 import YOLOv7, yolov7, yolov7_tiny
from obc.models.yolov7_loss import Gains, yolov7_loss
from obc.running.processes import Group
from obc.tasks import Detection, resolve
from obc.tasks.detection import _everyones, _parted
from obc.tasks.detectors import LIBRARIES, detector_of, unwrapped
from tests.boxed import rectangles, write_voc
from tests.vision import import_torchvision, installed

pytestmark = pytest.mark.skipif(not installed("pycocotools"), reason="no pycocotools")


@pytest.fixture
def task(tmp_path: Path) -> Detection:
    return rectangles(tmp_path)


def batch_of(task: Detection, size: int = 4) -> Boxed:
    batch: Boxed = next(iter(task.images.test(size)))
    return batch


def statistics(model: nn.Module) -> list[Tensor]:
    return [b.clone() for b in model.buffers()]


def test_losses_of_yolov7_have_the_published_gains(task: Detection) -> None:
    batch = batch_of(task)
    targets = [{"boxes": boxes, "labels": labels} for boxes, labels in batch.objects()]
    for build, gains in ((yolov7, Gains()), (yolov7_tiny, Gains(0.05, 1.0, 0.5))):
        torch.manual_seed(0)
        model = build(2, width=0.125).eval()
        expected = yolov7_loss(model.detect, model(batch.images), targets, gains)
        torch.testing.assert_close(task.loss(model, batch), expected)
        other = Gains(0.1, 1.0, 0.5)
        assert not torch.allclose(
            task.loss(model, batch), yolov7_loss(model.detect, model(batch.images), targets, other)
        )


def maps_of(model: YOLOv7, batch: Boxed, labels: int = 0) -> list[Tensor]:
    """Maps that say just what is there, each object at stride 8; `labels` are added to the true."""
    maps = [torch.full_like(m, -9.0).double() for m in model(batch.images)]
    anchors = model.detect.anchors[0].double() * 8
    for image, (boxes, truth) in enumerate(batch.objects()):
        for (x1, y1, x2, y2), label in zip(boxes.double().tolist(), truth.tolist(), strict=True):
            x, y = (x1 + x2) / 16, (y1 + y2) / 16
            sides = torch.tensor([x2 - x1, y2 - y1]).double()
            anchor = int(((sides / anchors).clamp(min=1) - 1).sum(1).argmin())
            cell = maps[0][image, anchor, int(y), int(x)]
            place = torch.tensor([x % 1 + 0.5, y % 1 + 0.5]).double() / 2
            size = (sides / anchors[anchor]).sqrt() / 2
            cell[:4] = torch.cat([place, size]).clamp(0.001, 0.999).logit()
            cell[4], cell[5 + (label + labels) % 2] = 9.0, 9.0
    return maps


def test_maps_that_say_what_is_there_have_full_precision(
    task: Detection, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = yolov7_tiny(2, width=0.125)
    plain = YOLOv7.forward

    def forward(self: YOLOv7, x: Tensor) -> list[Tensor]:
        with monkeypatch.context() as real:
            real.setattr(YOLOv7, "forward", plain)
            return maps_of(self, batch_of(task, 8), labels)

    monkeypatch.setattr(YOLOv7, "forward", forward)
    labels = 0
    right = task.evaluate(model)
    assert right.value == pytest.approx(1.0) and right["map"] > 0.85
    assert set(task.per_class(model)) == {"disc", "ring"}
    batch = batch_of(task, 8)
    assert task.judge(model, [batch]) == (1.0, round(right["map"], 3))
    nothing = batch._replace(labels=torch.full_like(batch.labels, ABSENT))
    assert task.judge(model, [nothing]) == ()
    labels = 1  # the other class
    assert task.evaluate(model).value < 0.2 and task.judge(model, [batch])[0] < 0.2


def test_the_loss_falls_and_a_cut_keeps_the_class(task: Detection) -> None:
    torch.manual_seed(0)
    model = yolov7_tiny(2, width=0.125)
    batch = batch_of(task, 4)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    for _ in range(12):
        loss = task.loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]
    before = statistics(model)
    small = obc.prune(model, task=task, target="channels=70%", rows=1, step=0.2, samples=8)
    assert all(torch.equal(a, b) for a, b in zip(before, statistics(model), strict=True))
    assert obc.cost(small, task.example()).macs < obc.cost(model, task.example()).macs
    assert type(small) is YOLOv7


def test_scoring_leaves_norm_statistics_alone(task: Detection) -> None:
    model = yolov7_tiny(2, width=0.125).train()
    before = statistics(model)
    sites = obc.trace(model, task.example())
    for criterion in ("jacobian", "hessian"):
        scores = obc.score(model, sites, [batch_of(task, 2)], task.loss, criterion)
        assert all(bool((s >= 0).all()) for s in scores.values())
    task.evaluate(model)
    assert model.training
    assert all(torch.equal(a, b) for a, b in zip(before, statistics(model), strict=True))


def test_a_whole_batch_is_its_parts(task: Detection) -> None:
    model = yolov7_tiny(2, width=0.125).eval()
    batch = batch_of(task, 4)
    parts = task.parts(batch, 2)
    assert [task.size(part) for part in parts] == [2, 2]
    assert all(bool(torch.isfinite(task.loss(model, part))) for part in parts)


def test_classes_that_the_model_does_not_know(task: Detection) -> None:
    model = yolov7_tiny(1, width=0.125).eval()
    with pytest.raises(obc.ObcError, match="the model knows 1 classes, but a label is 1"):
        task.loss(model, batch_of(task))
    with pytest.raises(obc.ObcError, match="knows 1 classes, the data has 2: disc, ring"):
        task.evaluate(model)
    with pytest.raises(obc.ObcError, match="Linear is no detector whose loss obc knows"):
        task.loss(nn.Linear(2, 2), batch_of(task))


def test_names_and_protocol(tmp_path: Path) -> None:
    write_voc(tmp_path)
    task = resolve(f"voc:{tmp_path},size=64x96")
    assert task.fitted("yolov7_tiny") == "yolov7_tiny,num_classes=2,in_channels=3"
    name = "torchvision:ssdlite320_mobilenet_v3_large"
    assert task.fitted(name) == f"{name},num_classes=3"
    assert "2 test images" in task.protocol and "64x96" in task.protocol
    assert task.example().shape == (1, 3, 64, 96)
    with pytest.raises(obc.ObcError, match="flip: detection has no such option"):
        task.changed(flip=True)


def test_halves_have_no_image_in_common(task: Detection) -> None:
    model = yolov7_tiny(2, width=0.125)
    for split in ("search", "promise"):
        assert task.evaluate(model, split).protocol.startswith(f"the {split} half")


class Together(Group):
    """One of three processes, whose tables are exchanged through a list."""

    def __init__(self, rank: int, tables: dict[int, list[Tensor]]) -> None:
        self.several, self.rank, self.count, self.tables = True, rank, 3, tables

    def largest(self, value: Tensor) -> Tensor:
        return torch.tensor([40, len(_WIDTHS), 8])

    def gathered(self, value: Tensor) -> list[Tensor]:
        self.tables[self.rank].append(value)
        return [value]


_WIDTHS = ("image", "x1", "y1", "x2", "y2", "score", "label")


def test_rows_of_several_processes_come_back_in_order(task: Detection) -> None:
    whole = [Detections(b, torch.rand(len(b)), c) for b, c in batch_of(task, 8).objects()]
    tables: dict[int, list[Tensor]] = {rank: [] for rank in range(3)}
    for rank in tables:
        _everyones(Together(rank, tables), whole[rank::3])
    rows = torch.cat([own[0] for own in tables.values()])
    assert rows.shape == (120, 7)
    for number, image in enumerate(whole):
        boxes, scores, labels = _parted(rows[rows[:, 0] == number][:, 1:])
        torch.testing.assert_close(boxes, image.boxes.double())
        torch.testing.assert_close(scores, image.scores.double())
        assert torch.equal(labels, image.labels)
    alone = [Detections(*_parted(rows)) for rows in _everyones(Group(), whole)]
    assert len(alone) == 8 and torch.equal(alone[3].labels, whole[3].labels)
    assert task.evaluate(yolov7_tiny(2, width=0.125), group=Group()).value < 0.5


@pytest.mark.skipif(not installed("torchvision"), reason="no torchvision")
@pytest.mark.torchvision
def test_torchvisions_losses(task: Detection) -> None:
    import_torchvision()
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large

    torch.manual_seed(0)
    model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3).eval()
    batch, before = batch_of(task, 2), statistics(model)
    ours = task.loss(model, batch)
    assert not model.training
    assert all(torch.equal(a, b) for a, b in zip(before, statistics(model), strict=True))
    targets = [{"boxes": b, "labels": labels + 1} for b, labels in batch.objects()]
    theirs = copy.deepcopy(model).train()
    for module in theirs.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.Dropout)):
            module.eval()
    expected = sum(theirs(list(batch.images), targets).values())
    torch.testing.assert_close(ours, expected)


def test_torchvisions_boxes_are_taken_as_they_come() -> None:
    class Found(nn.Module):
        __module__ = "torchvision.models.detection.found"

        def forward(self, images: list[Tensor]) -> list[dict[str, Tensor]]:
            box, one = torch.tensor([[1.0, 2, 3, 4]]), torch.ones(1)
            return [{"boxes": box, "scores": one, "labels": one.long()} for _ in images]

    model = Found()
    found = detector_of(model).found(model, model, torch.zeros(2, 3, 8, 8))
    assert len(found) == 2 and found[0].labels.tolist() == [0]  # 0 was the background's


@pytest.mark.skipif(not installed("transformers"), reason="no transformers")
def test_hugging_faces_detectors(task: Detection) -> None:
    import_torchvision()
    from transformers import YolosConfig, YolosForObjectDetection

    torch.manual_seed(0)
    config = YolosConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=[64, 64],
        num_detection_tokens=7,
        num_labels=2,
    )
    model = YolosForObjectDetection(config).eval()
    batch = batch_of(task, 2)
    labels = [
        {"class_labels": c, "boxes": obc.models.boxes.centred(b) / 64} for b, c in batch.objects()
    ]
    torch.testing.assert_close(
        task.loss(model, batch), model(pixel_values=batch.images, labels=labels).loss
    )
    found = task.found(model, batch.images)
    assert [len(d.scores) for d in found] == [14, 14]  # seven boxes, each of two classes
    assert set(found[0].labels.tolist()) == {0, 1}
    assert task.evaluate(model).value < 0.5


def test_a_wrapped_model_is_seen_through() -> None:
    inner = yolov7_tiny(2, width=0.125)

    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = inner

        def forward(self, x: Tensor) -> list[Tensor]:
            maps: list[Tensor] = self.module(x)
            return maps

    assert unwrapped(Wrapper()) is inner
    assert detector_of(Wrapper()) is detector_of(inner)


@pytest.mark.parametrize("name", ["Detect", "Segment"])
def test_heads_of_ultralytics_that_put_out_more_than_boxes(name: str) -> None:
    theirs = {"__module__": "ultralytics.nn.modules.head"}
    head = type("Mine", (type(name, (nn.Module,), theirs),), {})
    kind = type("DetectionModel", (nn.Module,), {"__module__": "ultralytics.nn.tasks"})
    model = kind()
    model.model = nn.Sequential(nn.Identity(), head())
    if name == "Detect":
        assert detector_of(model) is LIBRARIES["ultralytics"]
        return
    with pytest.raises(ObcError, match="ends in Detect or v10Detect, this model in Segment"):
        detector_of(model)
