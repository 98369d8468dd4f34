"""Images with boxes in the layout of Pascal VOC: JPEGImages, Annotations, ImageSets/Main."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

from obc.data.boxed import Annotated, annotated, checked
from obc.data.folder import ENDINGS
from obc.disk.reading import read_bytes
from obc.errors import ObcError

Rows = list[tuple[str, list[float]]]


def voc(root: Path) -> tuple[list[Annotated], list[Annotated], tuple[str, ...]]:
    """Entries to train on (trainval, or train), to test on (test, or val), and the class names.

    Classes are those that occur in the training images, in the order of their names. The pixels of
    a box count from 1 and its last ones belong to it, as VOC has it; "difficult" ones count too.
    """
    sets = root / "ImageSets" / "Main"
    train, test = _listed(sets, "trainval", "train"), _listed(sets, "test", "val")
    rows = {name: _rows(root / "Annotations" / f"{name}.xml") for name in (*train, *test)}
    classes = tuple(sorted({label for name in train for label, _ in rows[name]}))
    labels = {label: number for number, label in enumerate(classes)}
    files = {file.stem: file for file in (root / "JPEGImages").glob("*") if _is_image(file)}
    entries = {name: _entry(root, name, files, rows[name], labels) for name in rows}
    return [entries[n] for n in train], [entries[n] for n in test], classes


def _listed(folder: Path, *names: str) -> list[str]:
    """The images that the first list there is names."""
    for name in names:
        if (folder / f"{name}.txt").is_file():
            text = read_bytes(folder / f"{name}.txt", "a list of images").decode()
            chosen = [line.split()[0] for line in text.splitlines() if line.strip()]
            if chosen:
                return chosen
    raise ObcError(f"{folder} has no list of images: {' or '.join(f'{n}.txt' for n in names)}")


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in ENDINGS


def _entry(
    root: Path, name: str, files: dict[str, Path], rows: Rows, labels: dict[str, int]
) -> Annotated:
    if name not in files:
        raise ObcError(f"there is no image {name} in {root / 'JPEGImages'}")
    for label, _ in rows:
        if label not in labels:
            raise ObcError(
                f"{name}.xml has a '{label}', which no training image has; "
                f"there are {', '.join(labels)}"
            )
    return annotated(files[name], [(labels[label], corners) for label, corners in rows])


def _rows(file: Path) -> Rows:
    """Names and corners of the objects in one file of annotations."""
    try:
        tree = ET.fromstring(_harmless(read_bytes(file, "a file of annotations")))
        size = tree.find("size")
        width, height = (_number(size, side) for side in ("width", "height"))
        rows = [(_text(o, "name"), _corners(o)) for o in tree.findall("object")]
    except (ET.ParseError, ValueError) as error:
        if isinstance(error, ObcError):
            raise
        raise ObcError(f"{file} is no annotation of Pascal VOC: {error}") from None
    return [(name, checked(corners, width, height, str(file))) for name, corners in rows]


def _harmless(content: bytes) -> bytes:
    """Refuse entities, which can make a small file a large one."""
    if b"<!ENTITY" in content:
        raise ValueError("it declares entities")
    return content


def _corners(item: ET.Element) -> list[float]:
    box = item.find("bndbox")
    low: Sequence[float] = [_number(box, side) - 1 for side in ("xmin", "ymin")]
    return [*low, *(_number(box, side) for side in ("xmax", "ymax"))]


def _number(item: ET.Element | None, name: str) -> float:
    return float(_text(item, name))


def _text(item: ET.Element | None, name: str) -> str:
    text = item.findtext(name) if item is not None else None
    if text is None or not text.strip():
        raise ValueError(f"there is no <{name}>")
    return text.strip()
