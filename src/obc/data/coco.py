"""Images with boxes as COCO lists them: one JSON file with images, annotations and categories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from obc.data.boxed import Annotated, annotated, checked
from obc.disk.reading import parse
from obc.errors import ObcError

_WHAT = "a file of COCO annotations"


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Image(_Part):
    id: int
    file_name: str
    width: float
    height: float


class _Annotation(_Part):
    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]
    iscrowd: int = 0


class _Category(_Part):
    id: int
    name: str


class _File(_Part):
    images: list[_Image]
    annotations: list[_Annotation]
    categories: list[_Category]


def coco(
    file: Path, images: Path | None = None, classes: tuple[str, ...] | None = None
) -> tuple[list[Annotated], tuple[str, ...]]:
    """Entries and class names of one file; `images` is the folder of the pictures, else beside it.

    Labels number the categories in the order of their ids. Regions of crowds are left out.
    `classes` are those of the training file, which another one may not go beyond.
    """
    try:
        text = file.read_bytes()  # of any size: that of COCO itself has 450 MB
    except OSError as error:
        raise ObcError(f"{file} cannot be read: {error.strerror}") from None
    content = parse(_File, text, file, _WHAT)
    folder = images if images is not None else file.parent
    if not folder.is_dir():
        raise ObcError(f"no folder {folder}")
    categories = sorted(content.categories, key=lambda category: category.id)
    names = classes if classes is not None else tuple(c.name for c in categories)
    labels = {c.id: names.index(c.name) for c in categories if c.name in names}
    unknown = {c.id: c.name for c in categories if c.name not in names}
    sizes = {image.id: image for image in content.images}
    rows: dict[int, list[tuple[int, list[float]]]] = {image.id: [] for image in content.images}
    for number, annotation in enumerate(content.annotations):
        where = f"{file}, annotation {number}"
        label = _label(annotation.category_id, labels, unknown, names, where)
        image: Any = sizes.get(annotation.image_id)
        if image is None:
            raise ObcError(f"{where}: there is no image {annotation.image_id}")
        if annotation.iscrowd:
            continue
        x, y, w, h = annotation.bbox
        where = f"{where} ({image.file_name})"
        rows[image.id].append(
            (label, checked([x, y, x + w, y + h], image.width, image.height, where))
        )
    return [annotated(folder / image.file_name, rows[image.id]) for image in content.images], names


def _label(
    category: int,
    labels: dict[int, int],
    unknown: dict[int, str],
    names: tuple[str, ...],
    where: str,
) -> int:
    if category in labels:
        return labels[category]
    if category in unknown:
        raise ObcError(
            f"{where}: a '{unknown[category]}', which the training file does not have; "
            f"there are {', '.join(names)}"
        )
    raise ObcError(f"{where}: there is no category {category}")
