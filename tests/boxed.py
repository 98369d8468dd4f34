"""Small images with bright rectangles on them, in each layout of detection data."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from obc.data.boxed import BoxedImages, annotated
from obc.tasks import Detection

CLASSES = ("disc", "ring")
Row = tuple[int, list[float]]


def picture(seed: int, width: int = 80, height: int = 60) -> tuple[Image.Image, list[Row]]:
    """A grey image with one or two rectangles, red ones of class 0 and blue ones of class 1."""
    random = torch.Generator().manual_seed(seed)
    pixels = torch.full((height, width, 3), 90, dtype=torch.uint8)
    rows: list[Row] = []
    for label in range(1 + seed % 2):
        x, y = (int(torch.randint(0, side - 30, (), generator=random)) for side in (width, height))
        w, h = (int(torch.randint(14, 28, (), generator=random)) for _ in range(2))
        pixels[y : y + h, x : x + w] = torch.tensor([[230, 40, 40], [40, 40, 230]][label]).byte()
        rows.append((label, [x, y, x + w, y + h]))
    return Image.fromarray(pixels.numpy()), rows


def write_images(folder: Path, seeds: range) -> dict[str, list[Row]]:
    """Pictures as files; their rows by the files' stems."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = {}
    for seed in seeds:
        image, rows[f"p{seed}"] = picture(seed)
        image.save(folder / f"p{seed}.png")
    return rows


def write_voc(root: Path, train: int = 4, test: int = 2) -> None:
    rows = write_images(root / "JPEGImages", range(train + test))
    (root / "Annotations").mkdir()
    for name, own in rows.items():
        objects = "".join(
            f"<object><name>{CLASSES[label]}</name><bndbox><xmin>{x1 + 1}</xmin><ymin>{y1 + 1}"
            f"</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax></bndbox></object>"
            for label, (x1, y1, x2, y2) in own
        )
        size = "<size><width>80</width><height>60</height></size>"
        (root / "Annotations" / f"{name}.xml").write_text(f"<a>{size}{objects}</a>")
    lists = root / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    names = list(rows)
    (lists / "trainval.txt").write_text("\n".join(names[:train]))
    (lists / "test.txt").write_text("\n".join(names[train:]))


def write_coco(root: Path, count: int = 6) -> Path:
    rows = write_images(root, range(count))
    boxes = [
        {"image_id": i, "category_id": 10 + label, "bbox": [x1, y1, x2 - x1, y2 - y1]}
        for i, own in enumerate(rows.values())
        for label, (x1, y1, x2, y2) in own
    ]
    content = {
        "images": [
            {"id": i, "file_name": f"{name}.png", "width": 80, "height": 60}
            for i, name in enumerate(rows)
        ],
        "annotations": [{"id": n, **box} for n, box in enumerate(boxes)],
        "categories": [{"id": 10 + n, "name": name} for n, name in enumerate(CLASSES)],
    }
    (root / "boxes.json").write_text(json.dumps(content))
    return root / "boxes.json"


def write_yolo(root: Path, train: int = 4, test: int = 2) -> Path:
    for part, seeds in {"train": range(train), "val": range(train, train + test)}.items():
        rows = write_images(root / "images" / part, seeds)
        labels = root / "labels" / part
        labels.mkdir(parents=True)
        for name, own in rows.items():
            lines = [
                f"{label} {(x1 + x2) / 160} {(y1 + y2) / 120} {(x2 - x1) / 80} {(y2 - y1) / 60}"
                for label, (x1, y1, x2, y2) in own
            ]
            (labels / f"{name}.txt").write_text("\n".join(lines))
    (root / "data.yaml").write_text(
        "train: images/train\nval: images/val\nnames: {0: disc, 1: ring}\n"
    )
    return root / "data.yaml"


def rectangles(folder: Path, count: int = 8, size: tuple[int, int] = (64, 64)) -> Detection:
    """A detection task of pictures, the same to train and to test."""
    rows = write_images(folder, range(count))
    entries = [annotated(folder / f"{name}.png", own) for name, own in rows.items()]
    images = BoxedImages(entries, CLASSES, size)
    return Detection(images, images, name="rectangles")


def corners(images: BoxedImages) -> list[Tensor]:
    """The boxes of each entry, for comparison."""
    return [entry.boxes for entry in images.entries]
