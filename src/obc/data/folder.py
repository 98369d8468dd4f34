"""Image folders, one sub-folder per class, decoded by threads as batches are wanted."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from obc.data.images import Images
from obc.errors import ObcError

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)  # of a random crop, as in torchvision's references


class Folder(Images):
    """Every image under `root/<class>/`; `size` pixels square.

    Training sees a random crop of 8% to all of an image, testing the middle of one scaled to
    `size` · 256/224.
    """

    def __init__(self, root: Path, size: int) -> None:
        if not root.is_dir():
            raise ObcError(f"no folder {root}")
        classes = sorted(d.name for d in root.iterdir() if d.is_dir())
        if not classes:
            raise ObcError(f"{root} has no sub-folders; there must be one for each class")
        self.files: list[Path] = []
        labels = []
        for label, name in enumerate(classes):
            own = sorted(f for f in (root / name).rglob("*") if f.suffix.lower() in ENDINGS)
            if not own:
                raise ObcError(f"{root / name} holds no images ({', '.join(ENDINGS)})")
            self.files += own
            labels += [label] * len(own)
        super().__init__(torch.tensor(labels), (3, size, size), classes, MEAN, STD)
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1)

    def fetch(self, index: Tensor, random: torch.Generator | None) -> Tensor:
        size = self.shape[1]
        files = [self.files[i] for i in index.tolist()]
        if random is None:
            return torch.stack(list(self._pool.map(partial(middle, size=size), files)))
        # Drawn here, in order: threads finish in any order.
        draws = torch.rand(len(files), 4, generator=random).tolist()
        return torch.stack(list(self._pool.map(partial(crop, size=size), files, draws)))


def folders(root: Path, size: int) -> tuple[Folder, Folder]:
    """`train` and `val` (or `test`) below a folder, with the same classes."""
    test = root / "val" if (root / "val").is_dir() else root / "test"
    first, rest = Folder(root / "train", size), Folder(test, size)
    if first.classes != rest.classes:
        odd = sorted(set(first.classes) ^ set(rest.classes))[0]
        raise ObcError(f"class '{odd}' is only in one of {root / 'train'} and {test}")
    return first, rest


def opened(file: Path) -> Any:
    """An image in colour, as PIL has it."""
    from PIL import Image

    try:
        return Image.open(file).convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise ObcError(f"{file} is truncated or no image: {error}") from None


def middle(file: Path, size: int) -> Tensor:
    image = opened(file)
    scale = size * 256 / 224 / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    scaled = image.resize((width, height), 2)  # bilinear
    return _pixels(scaled.crop((left, top, left + size, top + size)))


def crop(file: Path, draw: list[float], size: int) -> Tensor:
    image = opened(file)
    area = image.width * image.height * (AREA[0] + draw[0] * (AREA[1] - AREA[0]))
    ratio = math.exp(math.log(RATIO[0]) + draw[1] * math.log(RATIO[1] / RATIO[0]))
    # Clamped rather than drawn again, so that each image takes the same number of draws.
    width = min(image.width, max(1, round(math.sqrt(area * ratio))))
    height = min(image.height, max(1, round(math.sqrt(area / ratio))))
    left, top = draw[2] * (image.width - width), draw[3] * (image.height - height)
    box = (left, top, left + width, top + height)
    return _pixels(image.resize((size, size), 2, box=box))


def _pixels(image: Any) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)
