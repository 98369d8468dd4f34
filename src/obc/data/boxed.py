"""Images with boxes: letterboxed to one size, in batches whose order follows from a seed alone."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Unpack

from obc.data.box_augment import augmented
from obc.data.folder import opened
from obc.data.order import Order, picks, positions, whole_batches
from obc.errors import ObcError

ABSENT = -1  # the label that fills the rows of images with fewer boxes than others of their batch
_GREY = 114  # around a letterboxed image, as YOLO has it
_MEMORY = 1 << 30  # bytes of decoded images that are kept


@dataclass(frozen=True)
class Annotated:
    """An image file with its boxes: two corners in pixels [n, 4], and their labels [n]."""

    file: Path
    boxes: Tensor
    labels: Tensor


class Boxed(NamedTuple):
    """A batch: images [b, 3, h, w] from 0 to 1, boxes [b, n, 4] as two corners in pixels, labels.

    Labels are [b, n]; a row whose label is −1 is no box, but fills up.
    """

    images: Tensor
    boxes: Tensor
    labels: Tensor

    def objects(self) -> list[tuple[Tensor, Tensor]]:
        """Boxes and labels of each image, without the rows that fill up."""
        there = self.labels != ABSENT
        rows = zip(self.boxes, self.labels, there, strict=True)
        return [(boxes[kept], labels[kept]) for boxes, labels, kept in rows]


class BoxedImages:
    """Annotated images, letterboxed to `size` (height, width); a source for `obc.tasks.Detection`.

    Args:
        entries: files with their boxes.
        classes: the names of the labels.
        size: height and width in pixels, multiples of 32.
        mean: of each colour, taken out of numbers from 0 to 1.
        std: what they are then divided by.
    """

    def __init__(
        self,
        entries: Sequence[Annotated],
        classes: Sequence[str],
        size: tuple[int, int],
        mean: Sequence[float] = (0.0, 0.0, 0.0),
        std: Sequence[float] = (1.0, 1.0, 1.0),
    ) -> None:
        if any(side < 32 or side % 32 for side in size):
            raise ObcError(f"sides are multiples of 32 pixels, not {size[0]}x{size[1]}")
        self.entries, self.classes, self.size = list(entries), tuple(classes), size
        self.mean, self.std = tuple(mean), tuple(std)
        empty = [entry.file for entry in self.entries if not len(entry.boxes)]
        if len(empty) == len(self.entries):
            raise ObcError("there are no images with boxes")
        if empty:
            warnings.warn(
                f"{len(empty)} of {len(self.entries)} images have no boxes, the first being "
                f"{empty[0]}: they count as background",
                stacklevel=3,
            )
        self._keep = 3 * size[0] * size[1] * len(self.entries) <= _MEMORY
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def described(self) -> dict[str, Any]:
        """What a run is recognised by when it goes on."""
        return {"images": len(self), "size": list(self.size), "classes": list(self.classes)}

    def count(self, size: int, world: int = 1) -> int:
        """How many training batches an epoch has; the rest that fills none is left out."""
        return whole_batches(len(self), size, world)

    def train(self, size: int, *, augment: bool = False, **order: Unpack[Order]) -> Iterator[Boxed]:
        """The batches of one epoch, shuffled.

        `size` is that of a whole batch, over all processes; with `augment`, images are flipped,
        scaled, moved and recoloured at random; `order` is that of `obc.data.order.Order`.
        """
        for index, random in picks(len(self), size, order):
            batch = self._batch(index)
            if augment:
                batch = Boxed(*augmented(*batch, random))
            yield self._normalised(batch)

    def test(
        self, size: int = 16, *, rank: int = 0, world: int = 1, half: int | None = None
    ) -> Iterator[Boxed]:
        """All images or one half of them in their order, or one process's share of these."""
        for index in positions(len(self), half)[rank::world].split(size):
            yield self._normalised(self._batch(index))

    def _batch(self, index: Tensor) -> Boxed:
        """Images in numbers from 0 to 1, with rows of boxes filled up."""
        chosen = [self._letterboxed(i) for i in index.tolist()]
        most = max(1, max(len(boxes) for _, boxes in chosen))
        boxes = torch.zeros(len(chosen), most, 4)
        labels = torch.full((len(chosen), most), ABSENT)
        for row, (i, (_, own)) in enumerate(zip(index.tolist(), chosen, strict=True)):
            boxes[row, : len(own)] = own
            labels[row, : len(own)] = self.entries[i].labels
        pixels = torch.stack([image for image, _ in chosen])
        return Boxed(pixels.float().div_(255), boxes, labels)

    def _letterboxed(self, index: int) -> tuple[Tensor, Tensor]:
        if index in self._kept:
            return self._kept[index]
        entry = self.entries[index]
        result = letterbox(opened(entry.file), entry.boxes, self.size)
        if self._keep:
            self._kept[index] = result
        return result

    def unit(self, images: Tensor) -> Tensor:
        """Images of a batch as numbers from 0 to 1."""
        mean, std = (torch.tensor(v).view(-1, 1, 1).to(images) for v in (self.mean, self.std))
        return images * std + mean

    def _normalised(self, batch: Boxed) -> Boxed:
        if not any(self.mean) and set(self.std) == {1.0}:
            return batch
        mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (self.mean, self.std))
        return batch._replace(images=(batch.images - mean) / std)


def letterbox(image: Any, boxes: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """An image of PIL scaled to fit, grey around it, and its boxes in the new pixels.

    >>> from PIL import Image
    >>> pixels, boxes = letterbox(
    ...     Image.new("RGB", (64, 32)), torch.tensor([[0.0, 0, 64, 32]]), (32, 32)
    ... )
    >>> tuple(pixels.shape), boxes.tolist()
    ((3, 32, 32), [[0.0, 8.0, 32.0, 24.0]])
    """
    height, width = size
    scale = min(height / image.height, width / image.width)
    inner = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    left, top = (width - inner[0]) // 2, (height - inner[1]) // 2
    pixels = torch.full((3, height, width), _GREY, dtype=torch.uint8)
    scaled = torch.from_numpy(np.array(image.resize(inner, 2)))  # bilinear
    pixels[:, top : top + inner[1], left : left + inner[0]] = scaled.permute(2, 0, 1)
    ratio = torch.tensor([inner[0] / image.width, inner[1] / image.height]).repeat(2)
    return pixels, boxes * ratio + torch.tensor([left, top, left, top])


def checked(corners: list[float], width: float, height: float, where: str) -> list[float]:
    """A box cut to its image; one that has no part in it, or no area, is refused.

    >>> checked([-1, 2, 5, 6], 10, 10, "photo.xml")
    [0.0, 2.0, 5.0, 6.0]
    """
    if not all(np.isfinite(corners)) or corners[0] >= corners[2] or corners[1] >= corners[3]:
        raise ObcError(
            f"{where}: a box from {_point(corners[:2])} to {_point(corners[2:])} is none"
        )
    left, top, right, bottom = (
        float(min(max(value, 0), most))
        for value, most in zip(corners, (width, height) * 2, strict=True)
    )
    if left >= right or top >= bottom:
        raise ObcError(
            f"{where}: the box from {_point(corners[:2])} to {_point(corners[2:])} lies outside "
            f"its image of {width:g}x{height:g} pixels"
        )
    return [left, top, right, bottom]


def annotated(file: Path, rows: Sequence[tuple[int, Sequence[float]]]) -> Annotated:
    """An entry from labels and corners."""
    boxes = torch.tensor([corners for _, corners in rows], dtype=torch.float32).reshape(-1, 4)
    return Annotated(file, boxes, torch.tensor([label for label, _ in rows], dtype=torch.long))


def _point(corner: Sequence[float]) -> str:
    return f"({corner[0]:g}, {corner[1]:g})"
