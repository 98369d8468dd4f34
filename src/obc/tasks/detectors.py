"""How detectors of each library give a loss, and what they have found.

| detectors of | loss | boxes |
| --- | --- | --- |
| obc (YOLOv7) | `yolov7_loss` | decoded, suppressed here |
| ultralytics | `model.loss(batch)`, a mean over images | decoded by its head, suppressed here |
| torchvision | the sum of the dict of losses | as they come |
| transformers | `outputs.loss` | logits and boxes, without suppression |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from obc.data.boxed import Boxed
from obc.errors import ObcError
from obc.models.boxes import centred, cornered
from obc.models.suppression import MOST, Detections, detections
from obc.models.yolov7 import TINY_POSITIONS, YOLOv7
from obc.models.yolov7_loss import GAINS, TINY_GAINS, yolov7_loss


@dataclass(frozen=True)
class Detector:
    """What a task asks of a kind of detectors; `model` is what is run, `plain` is not wrapped."""

    loss: Callable[[nn.Module, Any, Boxed], Tensor]
    found: Callable[[nn.Module, Any, Tensor], list[Detections]]
    classes: Callable[[Any], int | None]


def detector_of(model: nn.Module) -> Detector:
    """The kind of a detector, by the library that its class comes from."""
    for kind in type(unwrapped(model)).mro():
        library = kind.__module__.partition(".")[0]
        if issubclass(kind, YOLOv7):
            return OURS
        if library in LIBRARIES:
            if library == "ultralytics":
                _check_head(unwrapped(model))
            return LIBRARIES[library]
    raise ObcError(
        f"{type(model).__name__} is no detector whose loss obc knows: YOLOv7, or one of "
        f"{', '.join(LIBRARIES)}; for others write a task of your own (docs/extending.md)"
    )


def unwrapped(model: Any) -> Any:
    """A model without what `DistributedDataParallel` has put around it."""
    inner = getattr(model, "module", None)
    return inner if isinstance(inner, nn.Module) else model


_HEADS = ("Detect", "v10Detect")  # not those of masks, key points, turned boxes, texts, RT-DETR


def _our_loss(model: nn.Module, plain: Any, batch: Boxed) -> Tensor:
    targets = [{"boxes": boxes, "labels": labels} for boxes, labels in batch.objects()]
    gains = TINY_GAINS if plain.positions == TINY_POSITIONS else GAINS
    return yolov7_loss(plain.detect, model(batch.images), targets, gains)


def _our_boxes(model: nn.Module, plain: Any, images: Tensor) -> list[Detections]:
    decoded = plain.decoded(model(images))
    return [detections(cornered(d[:, :4]), d[:, 4:5] * d[:, 5:]) for d in decoded]


OURS = Detector(_our_loss, _our_boxes, lambda plain: int(plain.detect.classes))


def _check_head(plain: Any) -> None:
    """Refuse models of ultralytics that put out more than boxes, or boxes in another form."""
    kinds = type(plain.model[-1]).mro()
    head = next((k.__name__ for k in kinds if k.__module__.startswith("ultralytics.")), "nothing")
    if head not in _HEADS:
        raise ObcError(
            f"a detector of ultralytics ends in {' or '.join(_HEADS)}, this model in {head}, whose "
            "loss needs more than boxes: prune it with a loss of your own (obc.prune)"
        )


def _ultralytics_loss(model: nn.Module, plain: Any, batch: Boxed) -> Tensor:
    height, width = batch.images.shape[2:]
    objects = batch.objects()
    counts = torch.tensor([len(labels) for _, labels in objects], device=batch.images.device)
    boxes = torch.cat([boxes for boxes, _ in objects])
    named = {
        "img": batch.images,
        "batch_idx": torch.arange(len(counts), device=counts.device).repeat_interleave(counts),
        "cls": torch.cat([labels for _, labels in objects]).to(boxes).view(-1, 1),
        "bboxes": centred(boxes) / boxes.new_tensor([width, height, width, height]),
    }
    # `model.loss` keeps its criterion in the model, and with it the weights' device and number of
    # classes; one of our own for each batch leaves no trace. It reads its gains from `model.args`.
    args = plain.args
    if isinstance(args, dict):
        plain.args = SimpleNamespace(**args)
    try:
        criterion = plain.init_criterion()
    finally:
        plain.args = args
    terms, _ = criterion(model(batch.images), named)
    loss: Tensor = terms.sum() / len(batch.images)
    return loss


def _ultralytics_boxes(model: nn.Module, plain: Any, images: Tensor) -> list[Detections]:
    output: Any = model(images)
    output = output[0] if isinstance(output, (tuple, list)) else output
    if getattr(plain.model[-1], "end2end", False):
        return [Detections(d[:, :4], d[:, 4], d[:, 5].long()) for d in output]
    rows = output.transpose(1, 2)
    classes = int(plain.model[-1].nc)
    return [detections(cornered(d[:, :4]), d[:, 4 : 4 + classes]) for d in rows]


def _torchvision_loss(model: nn.Module, plain: Any, batch: Boxed) -> Tensor:
    targets = [{"boxes": boxes, "labels": labels + 1} for boxes, labels in batch.objects()]
    with losing(plain):
        losses: dict[str, Tensor] = model(list(batch.images), targets)
    return torch.stack(list(losses.values())).sum()


@contextmanager
def losing(model: nn.Module) -> Iterator[None]:
    """Training mode, in which torchvision's detectors put out losses; norms and dropout stay."""
    modes = [(m, m.training) for m in model.modules()]
    kept = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    for module, _ in modes:
        if not isinstance(module, kept):
            module.training = True
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _torchvision_boxes(model: nn.Module, plain: Any, images: Tensor) -> list[Detections]:
    outputs: list[dict[str, Tensor]] = model(list(images))
    return [Detections(o["boxes"], o["scores"], o["labels"] - 1) for o in outputs]


def _hugging_loss(model: nn.Module, plain: Any, batch: Boxed) -> Tensor:
    height, width = batch.images.shape[2:]
    labels = [
        {
            "class_labels": labels,
            "boxes": centred(boxes) / boxes.new_tensor([width, height, width, height]),
        }
        for boxes, labels in batch.objects()
    ]
    loss: Tensor = model(pixel_values=batch.images, labels=labels).loss
    return loss


def _hugging_boxes(model: nn.Module, plain: Any, images: Tensor) -> list[Detections]:
    height, width = images.shape[2:]
    outputs: Any = model(pixel_values=images)
    # DETR has one more class, for "nothing there"; its successors ask each class by itself.
    nothing = outputs.logits.shape[-1] > plain.config.num_labels
    logits = outputs.logits
    shares = logits.softmax(-1)[..., :-1] if nothing else logits.sigmoid()
    boxes = cornered(outputs.pred_boxes) * images.new_tensor([width, height, width, height])
    return [_best(b, p) for b, p in zip(boxes, shares, strict=True)]


def _best(boxes: Tensor, shares: Tensor) -> Detections:
    """The surest pairs of box and class."""
    scores, flat = shares.flatten().topk(min(MOST, shares.numel()))
    place = flat.div(shares.shape[1], rounding_mode="floor")
    return Detections(boxes[place], scores, flat % shares.shape[1])


LIBRARIES = {
    "ultralytics": Detector(
        _ultralytics_loss, _ultralytics_boxes, lambda plain: int(plain.model[-1].nc)
    ),
    "torchvision": Detector(_torchvision_loss, _torchvision_boxes, lambda plain: None),
    "transformers": Detector(
        _hugging_loss, _hugging_boxes, lambda plain: int(plain.config.num_labels)
    ),
}
