"""Images with boxes as YOLO has them: a YAML file, folders `images`, and a text file for each."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from obc.data.boxed import Annotated, annotated, checked
from obc.data.folder import ENDINGS, opened
from obc.disk.reading import read_bytes
from obc.errors import ObcError


def yolo(file: Path) -> tuple[list[Annotated], list[Annotated], tuple[str, ...]]:
    """Entries to train on, to test on ("val", else "test"), and the class names.

    `path` in the YAML is relative to the file, `train` and `val` to `path`: folders of images, or
    text files that list them. The boxes of `images/a.jpg` are the lines of `labels/a.txt`: label,
    centre, width and height as shares of the image; an image without such a file is background.
    """
    content = _yaml(file)
    names = content.get("names")
    if isinstance(names, list):
        names = dict(enumerate(names))
    if not isinstance(names, dict) or sorted(names) != list(range(len(names))) or not names:
        raise ObcError(f"{file}: 'names' must list the classes, numbered from 0")
    classes = tuple(str(names[number]) for number in range(len(names)))
    root = file.parent / str(content.get("path") or ".")
    train = _part(file, content, root, "train")
    test = _part(file, content, root, "val" if content.get("val") else "test")
    parts = [[_entry(image, classes) for image in part] for part in (train, test)]
    return parts[0], parts[1], classes


def _yaml(file: Path) -> dict[str, Any]:
    try:
        reader = importlib.import_module("yaml")
    except ImportError:
        raise ObcError(
            "PyYAML is not installed: pip install 'obc[detection]'", section="what-is-not-installed"
        ) from None
    try:
        content = reader.safe_load(read_bytes(file, "a YAML file of data"))
    except reader.YAMLError as error:
        raise ObcError(f"{file} cannot be read as YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict):
        raise ObcError(f"{file} is no data file of YOLO: it must say train, val and names")
    return content


def _part(file: Path, content: dict[str, Any], root: Path, name: str) -> list[Path]:
    """The images of a part: of a folder, a list of them, or a text file."""
    places = content.get(name)
    if not places:
        raise ObcError(f"{file} does not say where '{name}' is")
    images: list[Path] = []
    for place in places if isinstance(places, list) else [places]:
        path = root / str(place)
        if path.is_dir():
            images += sorted(f for f in path.rglob("*") if f.suffix.lower() in ENDINGS)
        elif path.is_file():
            lines = read_bytes(path, "a list of images").decode().splitlines()
            images += [path.parent / line.strip() for line in lines if line.strip()]
        else:
            raise ObcError(f"{file}: '{name}' names {path}, and there is no such folder")
    if not images:
        raise ObcError(f"{file}: '{name}' names {root / str(places)}, which holds no images")
    return images


def _entry(image: Path, classes: tuple[str, ...]) -> Annotated:
    folders = list(image.parent.parts)
    place = len(folders) - 1 - folders[::-1].index("images") if "images" in folders else None
    if place is not None:
        folders[place] = "labels"
    labels = Path(*folders) / f"{image.stem}.txt"
    if not labels.is_file():
        return annotated(image, [])
    width, height = opened(image).size
    lines = read_bytes(labels, "a file of labels").decode().splitlines()
    rows = [
        _row(line.split(), width, height, classes, f"{labels}, line {number}")
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    return annotated(image, rows)


def _row(
    words: list[str], width: int, height: int, classes: tuple[str, ...], where: str
) -> tuple[int, list[float]]:
    try:
        label, (x, y, w, h) = int(words[0]), map(float, words[1:])
    except ValueError:
        raise ObcError(
            f"{where}: a line is a label, a centre, a width and a height, not '{' '.join(words)}'"
        ) from None
    if not 0 <= label < len(classes):
        raise ObcError(
            f"{where}: class {label}, but 'names' has {len(classes)}: 0 to {len(classes) - 1}"
        )
    low, high = (
        ((x - w / 2) * width, (y - h / 2) * height),
        ((x + w / 2) * width, (y + h / 2) * height),
    )
    return label, checked([*low, *high], width, height, where)
