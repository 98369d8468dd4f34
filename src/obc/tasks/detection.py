"""`Detection`: boxes around objects, judged by mean average precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from obc.data.boxed import Annotated, Boxed, BoxedImages
from obc.data.coco import coco
from obc.data.folder import MEAN, STD
from obc.data.order import Order
from obc.data.sources import moved
from obc.data.voc import voc
from obc.data.yolo import yolo
from obc.errors import ObcError
from obc.models.fitting import fitted
from obc.models.resolver import options_of
from obc.models.suppression import Detections
from obc.running.forward import evaluating
from obc.running.processes import Group
from obc.tasks.average_precision import Objects, Precision, average_precision
from obc.tasks.detectors import detector_of, unwrapped
from obc.tasks.evaluation import Evaluation, Metric
from obc.tasks.task import HALVES, Split, Task, device_of

_BATCH = 16  # images of a batch when a detector is evaluated
_TAIL = 10  # one image in so many, from the end of a single COCO file, is kept for evaluation


class Detection(Task):
    """Boxes of several classes: the loss of the detector's own library, mAP at 0.5 and 0.5:0.95.

    Training images are flipped, scaled, moved and recoloured at random; calibration batches are
    not. Quality targets need outcomes of single images, which mAP has not.

    Args:
        train: what calibration and training batches are made of.
        test: what mAP is measured on.
        name: what the task is called in titles.

    >>> import tempfile
    >>> from PIL import Image
    >>> from obc.models import yolov7_tiny
    >>> file = Path(tempfile.mkdtemp()) / "grey.png"
    >>> Image.new("RGB", (64, 64)).save(file)
    >>> entry = Annotated(file, torch.tensor([[8.0, 8, 40, 40]]), torch.tensor([0]))
    >>> images = BoxedImages([entry], ["cell"], (64, 64))
    >>> str(Detection(images, images).evaluate(yolov7_tiny(1, width=0.125)))
    'mAP@0.5 ..., mAP@0.5:0.95 ...'
    """

    metrics = (
        Metric("map50", digits=3, label="mAP@0.5", most=1.0),
        Metric("map", digits=3, label="mAP@0.5:0.95", most=1.0),
    )
    # A batch of a detector costs as much as hundreds of small images.
    planning: Mapping[str, Any] = {"rows": 16, "step": 0.025, "batch_size": 8, "samples": 128}

    def __init__(
        self, train: BoxedImages | None = None, test: BoxedImages | None = None, *, name: str = ""
    ) -> None:
        super().__init__(name=name)
        self.train, self.test = train, test

    @property
    def images(self) -> BoxedImages:
        """The images, of training where there are any."""
        images = self.train if self.train is not None else self.test
        if not isinstance(images, BoxedImages):
            raise ObcError("this task has no images")
        return images

    @property
    def protocol(self) -> str:
        """Images, classes, size, and how mAP is taken."""
        images, (height, width) = self.images, self.images.size
        count = len(self.test) if isinstance(self.test, BoxedImages) else 0
        return (
            f"{count} test images of {self.name}, {len(images.classes)} classes, letterboxed to "
            f"{height}x{width}; AP of COCO (101 recalls, at most 100 boxes an image), eval mode"
        )

    def fitted(self, model: str) -> str:
        """The name of a model with as many classes as the images have."""
        classes = len(self.images.classes)
        background = model.startswith("torchvision:")
        return fitted(model, (3, *self.images.size), classes + background)

    def example(self) -> Tensor:
        """The first image."""
        batch: Boxed = next(iter(self._source("test" if self.train is None else "train").test(1)))
        return batch.images

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss of the detector's library, a mean over images."""
        boxed: Boxed = moved(batch, device_of(model))
        plain = unwrapped(model)
        kind = detector_of(model)
        known, most = kind.classes(plain), int(boxed.labels.max())
        if known is not None and most >= known:
            raise ObcError(f"the model knows {known} classes, but a label is {most}")
        return kind.loss(model, plain, boxed)

    @torch.no_grad()
    def found(self, model: nn.Module, images: Tensor) -> list[Detections]:
        """What a detector finds in images of a batch; in eval mode meanwhile."""
        with evaluating(model):
            return detector_of(model).found(model, unwrapped(model), images.to(device_of(model)))

    def evaluate(
        self, model: nn.Module, split: Split = "test", group: Group | None = None
    ) -> Evaluation:
        """mAP at 0.5, and over 0.5 … 0.95; in several processes each finds boxes in its share."""
        precision = self.precision(model, split, group)
        protocol = self.protocol if split == "test" else f"the {split} half of {self.protocol}"
        return Evaluation(tuple(self.metrics), (precision.at_half, precision.mean), protocol)

    def per_class(self, model: nn.Module, split: Split = "test") -> dict[str, tuple[float, float]]:
        """AP at 0.5, and over 0.5 … 0.95, of each class that occurs."""
        names = self.images.classes
        precision = self.precision(model, split)
        return {names[label]: values for label, values in precision.classes.items()}

    def precision(
        self, model: nn.Module, split: Split = "test", group: Group | None = None
    ) -> Precision:
        """AP of all classes together and of each."""
        rank, world = (group.rank, group.count) if group is not None else (0, 1)
        batches = self._source("test").test(_BATCH, rank=rank, world=world, half=HALVES[split])
        found, truth = self._compared(model, batches)
        if group is not None:
            found = [Detections(*_parted(rows)) for rows in _everyones(group, found)]
            truth = [(boxes, labels) for boxes, labels in map(_parted, _everyones(group, truth))]
        return average_precision(found, truth, len(self.images.classes))

    def judge(self, model: nn.Module, batches: Iterable[Boxed]) -> tuple[float, ...]:
        """mAP of both kinds on calibration batches, by which recalibration is kept or not.

        A detector's outputs are no measure of that: boxes in pixels outweigh all scores, and at
        most places nothing is to be found. Rounded as it is printed: what differs by less is level.
        """
        found, truth = self._compared(model, batches)
        if not any(len(labels) for _, labels in truth):
            return ()
        precision = average_precision(found, truth, len(self.images.classes))
        figures = (precision.at_half, precision.mean)
        return tuple(round(f, m.digits) for f, m in zip(figures, self.metrics, strict=True))

    def _compared(
        self, model: nn.Module, batches: Iterable[Boxed]
    ) -> tuple[list[Detections], list[Objects]]:
        """What a detector finds in each image, and what is there."""
        self._check(model)
        found: list[Detections] = []
        truth: list[Objects] = []
        for batch in batches:
            found += [Detections(*(t.cpu() for t in d)) for d in self.found(model, batch.images)]
            truth += batch.objects()
        return found, truth

    def changed(self, **options: Any) -> Task:
        """None of a recipe's options, which are those of classification."""
        for name in options:
            raise ObcError(f"{name}: detection has no such option; its images vary by themselves")
        return self

    def training(
        self, size: int, *, device: torch.device | None = None, **order: Unpack[Order]
    ) -> Iterator[Any]:
        """As `Task.training`, augmented."""
        images = self._source("train")
        assert isinstance(images, BoxedImages)
        batches = images.train(size, augment=True, **order)
        return (moved(batch, device) for batch in batches)

    def _check(self, model: nn.Module) -> None:
        """Refuse a model with another number of classes than the data has."""
        known, names = detector_of(model).classes(unwrapped(model)), self.images.classes
        if known is not None and known != len(names):
            raise ObcError(
                f"the model knows {known} classes, the data has {len(names)}: {', '.join(names)}"
            )


def _everyones(group: Group, images: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Rows of each image of all processes: boxes, a score if there is one, the label.

    Rank r has the images r, r + world, …, in that order.
    """
    rows = [_rows(group.rank + i * group.count, own) for i, own in enumerate(images)]
    table = torch.cat(rows) if rows else torch.zeros(0, 1, dtype=torch.float64)
    last = group.rank + (len(rows) - 1) * group.count if rows else -1
    sizes = group.largest(torch.tensor([len(table), table.shape[1], last + 1])).tolist()
    padded = torch.full((sizes[0], sizes[1]), -1.0, dtype=torch.float64)
    padded[: len(table), : table.shape[1]] = table
    whole = torch.cat(group.gathered(padded))
    return [whole[whole[:, 0] == number][:, 1:] for number in range(sizes[2])]


def _rows(number: int, image: Sequence[Tensor]) -> Tensor:
    """The tensors of an image side by side, its number before them."""
    columns = [t.double().reshape(len(t), -1) for t in image]
    return torch.cat([torch.full((len(image[-1]), 1), float(number)).double(), *columns], 1)


def _parted(rows: Tensor) -> tuple[Tensor, ...]:
    """Boxes, scores where there are any, and labels."""
    between = [rows[:, k] for k in range(4, rows.shape[1] - 1)]
    return rows[:, :4], *between, rows[:, -1].long()


Parts = tuple[list[Annotated], list[Annotated], tuple[str, ...]]


def from_voc(place: str, model: str | None) -> Detection:
    """The task of "voc:FOLDER[,size=416]"."""
    return _from("voc", place, model, lambda path, options: voc(path))


def from_yolo(place: str, model: str | None) -> Detection:
    """The task of "yolo:FILE.yaml[,size=416]"."""
    return _from("yolo", place, model, lambda path, options: yolo(path))


def from_coco(place: str, model: str | None) -> Detection:
    """The task of "coco:FILE.json[,images=FOLDER][,test=FILE.json][,test_images=FOLDER]".

    Without a file to test on, the last tenth of the images is kept for that.
    """
    return _from("coco", place, model, _coco, ("images", "test", "test_images"))


def _coco(path: Path, options: dict[str, Any]) -> Parts:
    images = Path(options["images"]) if "images" in options else None
    train, classes = coco(path, images)
    if "test" not in options:
        tail = max(1, len(train) // _TAIL)
        return train[:-tail], train[-tail:], classes
    place = Path(options["test_images"]) if "test_images" in options else images
    test, _ = coco(Path(options["test"]), place, classes)
    return train, test, classes


def _from(
    kind: str,
    place: str,
    model: str | None,
    read: Callable[[Path, dict[str, Any]], Parts],
    known: Sequence[str] = (),
) -> Detection:
    path, options = options_of(place)
    unknown = options.keys() - {"size", *known}
    if unknown:
        there = ", ".join(["size", *known])
        raise ObcError(f"{kind}:{place}: no option '{min(unknown)}'; there are {there}")
    if not Path(path).exists():
        raise ObcError(f"no {'folder' if kind == 'voc' else 'file'} {path}")
    size = _size(str(options.pop("size", 640)))
    train, test, classes = read(Path(path), options)
    # Detectors of transformers get normalised numbers; all others take them from 0 to 1.
    hugging = model is not None and model.startswith("hf:")
    share = (MEAN, STD) if hugging else ((0.0,) * 3, (1.0,) * 3)
    parts = [BoxedImages(part, classes, size, *share) for part in (train, test)]
    return Detection(*parts, name=Path(path).stem)


def _size(text: str) -> tuple[int, int]:
    """
    >>> _size("416"), _size("256x320")
    ((416, 416), (256, 320))
    """
    sides = text.split("x")
    if len(sides) > 2 or not all(side.isdecimal() for side in sides):
        raise ObcError(f"size is a side or HEIGHTxWIDTH in pixels, not '{text}'")
    return int(sides[0]), int(sides[-1])
