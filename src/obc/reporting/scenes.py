"""The same few images with the boxes that each of several detectors finds on them."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from obc.models.suppression import Detections
from obc.reporting.record import Box, Scene
from obc.tasks.detection import Detection

COUNT = 4
SURE = 0.25  # boxes with a lower score are not drawn


def scenes(task: Any, models: Mapping[str, nn.Module]) -> list[Scene]:
    """The first test images with the boxes of each model, by the model's name.

    Tasks other than detection have none.
    """
    if not isinstance(task, Detection) or task.test is None:
        return []
    images = task.images
    batch = next(iter(task.test.test(COUNT)))
    found = {name: task.found(model, batch.images) for name, model in models.items()}
    pixels = images.unit(batch.images)
    return [
        Scene(
            image=_jpeg(pixels[i]),
            width=images.size[1],
            height=images.size[0],
            classes=list(images.classes),
            found={name: _boxes(of_model[i]) for name, of_model in found.items()},
        )
        for i in range(len(pixels))
    ]


def _boxes(found: Detections) -> list[Box]:
    rows = zip(found.boxes.tolist(), found.scores.tolist(), found.labels.tolist(), strict=True)
    return [
        Box(x=x1, y=y1, width=x2 - x1, height=y2 - y1, score=min(score, 1.0), label=label)
        for (x1, y1, x2, y2), score, label in rows
        if score >= SURE and x2 > x1 and y2 > y1
    ]


def _jpeg(pixels: Tensor) -> str:
    """An image, [3, height, width] from 0 to 1, as a JPEG in base64."""
    from PIL import Image

    buffer = io.BytesIO()
    values = pixels.mul(255).round().clamp(0, 255).byte().permute(1, 2, 0).cpu().numpy()
    Image.fromarray(values).save(buffer, "JPEG", quality=80)
    return base64.b64encode(buffer.getvalue()).decode()
