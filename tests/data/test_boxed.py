"""Images with boxes: three layouts of the same data, letterboxing, augmentation, and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from obc.data.box_augment import augmented
from obc.data.boxed import ABSENT, Boxed, BoxedImages, annotated, letterbox
from obc.errors import ObcError
from obc.tasks import Detection, resolve
from tests.boxed import CLASSES, picture, write_coco, write_voc, write_yolo


def of(task: Any) -> tuple[BoxedImages, BoxedImages]:
    assert isinstance(task, Detection)
    assert isinstance(task.train, BoxedImages) and isinstance(task.test, BoxedImages)
    return task.train, task.test


def test_three_layouts_read_the_same(tmp_path: Path) -> None:
    write_voc(tmp_path / "voc")
    file = write_coco(tmp_path / "coco")
    yaml = write_yolo(tmp_path / "yolo")
    names = (f"voc:{tmp_path / 'voc'}", f"coco:{file}", f"yolo:{yaml}")
    voc, coco, yolo = (of(resolve(f"{name},size=64x96")) for name in names)
    entries = [part.entries for part in (*voc, *yolo, *coco)]
    assert [len(e) for e in entries] == [4, 2, 4, 2, 5, 1]
    whole = [entries[0] + entries[1], entries[2] + entries[3], entries[4] + entries[5]]
    for seed, three in enumerate(zip(*whole, strict=True)):
        _, rows = picture(seed)
        for entry in three:
            assert entry.labels.tolist() == [label for label, _ in rows]
            expected = torch.tensor([corners for _, corners in rows], dtype=torch.float32)
            torch.testing.assert_close(entry.boxes, expected)
    assert voc[0].classes == yolo[0].classes == coco[0].classes == CLASSES


def test_letterboxed_boxes_lie_on_their_pixels() -> None:
    image, rows = picture(1)
    for size in ((64, 64), (96, 64), (64, 160)):
        pixels, boxes = letterbox(image, torch.tensor([c for _, c in rows]).float(), size)
        assert pixels.shape == (3, *size)
        for (label, _), (x1, y1, x2, y2) in zip(rows, boxes.round().int().tolist(), strict=True):
            inner = pixels[:, y1 + 2 : y2 - 2, x1 + 2 : x2 - 2].float()
            assert inner.numel() and inner[[0, 2][label]].min() > 180
            outside = pixels[[0, 2][label], (y1 + y2) // 2, max(0, x1 - 3)]
            if label == 0 and len(rows) == 1:
                assert outside < 180


def test_augmented_boxes_follow_their_pixels(tmp_path: Path) -> None:
    # A white rectangle on black; after any move, the box is where the white is.
    images = torch.zeros(32, 3, 96, 96)
    images[:, :, 30:62, 40:70] = 1
    boxes = torch.tensor([[[40.0, 30, 70, 62]]]).expand(32, -1, -1)
    labels = torch.zeros(32, 1, dtype=torch.long)
    moved = Boxed(*augmented(images, boxes, labels, torch.Generator().manual_seed(0)))
    assert (moved.labels == 0).all() and not torch.equal(moved.boxes, boxes)
    for image, (x1, y1, x2, y2) in zip(moved.images, moved.boxes[:, 0].tolist(), strict=True):
        rows, columns = (image.amin(0) > 0.5).nonzero(as_tuple=True)
        measured = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert [float(v) for v in measured] == pytest.approx([x1, y1, x2, y2], abs=1.5)
    flat = augmented(images, boxes + 95, labels, torch.Generator().manual_seed(0))
    assert (flat[2] == ABSENT).any()  # outside: no box any more


def test_order_and_augmentation_follow_from_seed_and_epoch(tmp_path: Path) -> None:
    write_voc(tmp_path, 6)
    images, _ = of(resolve(f"voc:{tmp_path},size=64"))
    first, again, other = (list(images.train(2, seed=1, epoch=e, augment=True)) for e in (3, 3, 4))
    later = list(images.train(2, seed=1, epoch=3, start=1, augment=True))
    assert len(first) == 3 and len(later) == 2
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a.images, b.images) and torch.equal(a.boxes, b.boxes)
    for a, b in zip(first[1:], later, strict=True):
        assert torch.equal(a.images, b.images)
    assert not torch.equal(first[0].images, other[0].images)
    shared = list(images.train(2, seed=1, epoch=3, rank=1, world=2))
    assert [len(b.images) for b in shared] == [1, 1, 1]


def test_rows_that_fill_up_are_no_objects(tmp_path: Path) -> None:
    write_voc(tmp_path)
    images, _ = of(resolve(f"voc:{tmp_path},size=64"))
    batch = next(images.test(4))
    assert batch.labels.tolist() == [[0, -1], [0, 1], [0, -1], [0, 1]]
    assert [len(labels) for _, labels in batch.objects()] == [1, 2, 1, 2]


def test_an_image_without_boxes_is_background_and_said(tmp_path: Path) -> None:
    image, rows = picture(0)
    image.save(tmp_path / "a.png")
    entries = [annotated(tmp_path / "a.png", rows), annotated(tmp_path / "a.png", [])]
    with pytest.warns(UserWarning, match=r"1 of 2 images have no boxes, the first being .*a\.png"):
        images = BoxedImages(entries, CLASSES, (64, 64))
    assert [len(labels) for _, labels in next(images.test(2)).objects()] == [1, 0]
    with pytest.raises(ObcError, match="there are no images with boxes"):
        BoxedImages(entries[1:], CLASSES, (64, 64))


def change_voc(root: Path, old: str, new: str, name: str = "p0") -> None:
    file = root / "Annotations" / f"{name}.xml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "name", "words"),
    [
        ("<width>80", "<width>3", "p0", r"p0\.xml: the box from .* lies outside its image of 3x60"),
        ("<xmax>", "<xmax>-", "p0", r"p0\.xml: a box from .* is none"),
        ("disc", "star", "p5", "p5.xml has a 'star', which no training image has"),
        ("<xmin>", "<xmin>a", "p0", "p0.xml is no annotation of Pascal VOC"),
        ("</a>", "", "p0", "p0.xml is no annotation of Pascal VOC"),
        ("<a>", "<!DOCTYPE a [<!ENTITY b 'c'>]><a>", "p0", "declares entities"),
    ],
)
def test_bad_voc(tmp_path: Path, old: str, new: str, name: str, words: str) -> None:
    write_voc(tmp_path)
    change_voc(tmp_path, old, new, name)
    with pytest.raises(ObcError, match=words):
        resolve(f"voc:{tmp_path}")


def test_missing_files_of_voc(tmp_path: Path) -> None:
    with pytest.raises(ObcError, match="no folder"):
        resolve(f"voc:{tmp_path / 'none'}")
    with pytest.raises(ObcError, match=r"has no list of images: trainval\.txt or train\.txt"):
        resolve(f"voc:{tmp_path}")
    write_voc(tmp_path)
    (tmp_path / "JPEGImages" / "p1.png").unlink()
    with pytest.raises(ObcError, match="there is no image p1"):
        resolve(f"voc:{tmp_path}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bbox": [500, 0, 10, 10]}, "lies outside its image of 80x60 pixels"),
        ({"bbox": [5, 5, 0, 10]}, "is none"),
        ({"category_id": 99}, "annotation 0: there is no category 99"),
        ({"image_id": 77}, "annotation 0: there is no image 77"),
        ({"bbox": [1, 2, 3]}, "is not a file of COCO annotations"),
    ],
)
def test_bad_coco(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    file = write_coco(tmp_path)
    content = json.loads(file.read_text())
    content["annotations"][0].update(change)
    file.write_text(json.dumps(content))
    with pytest.raises(ObcError, match=words):
        resolve(f"coco:{file}")


def test_a_second_coco_file_may_have_no_other_class(tmp_path: Path) -> None:
    train, test = write_coco(tmp_path / "a"), write_coco(tmp_path / "b")
    assert len(of(resolve(f"coco:{train},test={test},test_images={test.parent}"))[1]) == 6
    test.write_text(test.read_text().replace('"ring"', '"star"'))
    with pytest.raises(ObcError, match="a 'star', which the training file does not have"):
        resolve(f"coco:{train},test={test}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train: images/train\nval: images/val\nnames: {1: a}", "'names' must list the classes"),
        ("train: images/train\nval: nowhere\nnames: [a, b]", "'val' names .*nowhere, and there is"),
        ("train: images/train\nnames: [a, b]", "does not say where 'test' is"),
        ("train: images/train\nval: images/val\nnames: [a]", r"class 1, but 'names' has 1: 0 to 0"),
        ("just words", "is no data file of YOLO"),
        ("a: [", "cannot be read as YAML"),
    ],
)
def test_bad_yaml(tmp_path: Path, text: str, words: str) -> None:
    file = write_yolo(tmp_path)
    file.write_text(text)
    with pytest.raises(ObcError, match=words):
        resolve(f"yolo:{file}")


def test_bad_lines_of_yolo(tmp_path: Path) -> None:
    file = write_yolo(tmp_path)
    labels = tmp_path / "labels" / "train" / "p0.txt"
    for line, words in (
        ("0 0.5 0.5 0.1", "line 1: a line is a label, a centre, a width and a height"),
        ("0 1.5 0.5 0.1 0.1", "line 1: the box from .* lies outside its image of 80x60 pixels"),
    ):
        labels.write_text(line)
        with pytest.raises(ObcError, match=words):
            resolve(f"yolo:{file}")


def test_options_and_sizes_are_checked(tmp_path: Path) -> None:
    write_voc(tmp_path)
    with pytest.raises(ObcError, match="no option 'sides'; there are size"):
        resolve(f"voc:{tmp_path},sides=3")
    with pytest.raises(ObcError, match="multiples of 32 pixels, not 50x50"):
        resolve(f"voc:{tmp_path},size=50")
    with pytest.raises(ObcError, match="size is a side or HEIGHTxWIDTH"):
        resolve(f"voc:{tmp_path},size=axb")


def test_images_that_transformers_takes_are_normalised(tmp_path: Path) -> None:
    write_voc(tmp_path)
    plain, normed = (of(resolve(f"voc:{tmp_path},size=64", m))[0] for m in (None, "hf:detr"))
    a, b = next(plain.test(2)).images, next(normed.test(2)).images
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (normed.mean, normed.std))
    torch.testing.assert_close(b * std + mean, a)
    assert not torch.equal(a, b)


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    write_voc(tmp_path)
    (tmp_path / "JPEGImages" / "p0.png").write_bytes(b"no image")
    images, _ = of(resolve(f"voc:{tmp_path},size=64"))
    with pytest.raises(ObcError, match=r"p0\.png is truncated or no image"):
        next(images.test(1))
    assert Image.open(tmp_path / "JPEGImages" / "p1.png").size == (80, 60)
