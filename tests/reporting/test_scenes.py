"""The images of a report: the same for each model, with the boxes that each finds."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import pytest
import torch
from PIL import Image
from pydantic import ValidationError

from obc.models.suppression import Detections
from obc.reporting.page import page
from obc.reporting.record import Box, Record, Scene
from obc.reporting.scenes import SURE, scenes
from obc.tasks import Classification, Detection
from tests.boxed import rectangles
from tests.reporting.markup import Markup
from tests.reporting.sample import PIXEL


class Known(torch.nn.Module):
    """Stands for a detector that finds one box, and one that it is not sure of."""

    def __init__(self, x: float) -> None:
        super().__init__()
        self.x = x


def test_images_are_the_same_and_boxes_each_models_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = rectangles(tmp_path, 6, (64, 96))

    def found(self: Detection, model: Known, images: torch.Tensor) -> list[Detections]:
        boxes = torch.tensor([[model.x, 2.0, model.x + 10, 8.0]]).repeat(2, 1)
        row = Detections(boxes, torch.tensor([0.9, SURE / 2]), torch.tensor([1, 0]))
        return [row] * len(images)

    monkeypatch.setattr(Detection, "found", found)
    drawn = scenes(task, {"before": Known(1.0), "cut": Known(5.0)})
    assert len(drawn) == 4
    for scene in drawn:
        assert [box.x for boxes in scene.found.values() for box in boxes] == [1.0, 5.0]
        assert Image.open(io.BytesIO(base64.b64decode(scene.image))).size == (96, 64)
    assert len({scene.image for scene in drawn}) == 4
    text = page(Record(title="boxes", command="obc prune", scenes=drawn))
    assert {"before", "cut"} <= set(Markup(text).words)
    assert text.count('class="scene"') == 8


def test_other_tasks_have_none() -> None:
    assert scenes(Classification(), {}) == []


def test_a_scene_that_cannot_be_drawn_is_refused() -> None:
    box = Box(x=0.0, y=0.0, width=1.0, height=1.0, score=0.5, label=1)
    with pytest.raises(ValidationError, match="label beyond the classes"):
        Scene(image=PIXEL, width=8, height=8, classes=["cell"], found={"cut": [box]})
    with pytest.raises(ValidationError, match="pattern"):
        Scene(image='x" onload="', width=8, height=8, classes=[], found={})
