"""`Segmentation`: a class for each pixel, judged by the mean intersection over union."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from obc.data.sources import Collate
from obc.errors import ObcError
from obc.tasks.classification import divergence, logits_of, pair
from obc.tasks.evaluation import Metric
from obc.tasks.task import Task, device_of


class Segmentation(Task):
    """Cross-entropy and mIoU on batches of images and masks, [N, C, H, W] and [N, H, W].

    For each class, IoU = TP / (TP + FP + FN) over the pixels of all images; mIoU is their mean over
    the classes that occur in masks or predictions (M. Everingham et al., The Pascal Visual Object
    Classes Challenge, IJCV 2015). A model puts out logits, an object that holds them (`logits`, as
    those of transformers), or a dict with them under "out" (torchvision's); logits of another size
    than the masks are scaled to it.

    Args:
        train: batches of images and masks, or a data set of such pairs.
        test: the same, to evaluate on.
        name: what the task is called in titles.
        collate: makes a batch of a list of samples, where the data are samples.
        ignore: the value of pixels that count for nothing.

    >>> batch = torch.randn(2, 3, 8, 8), torch.randint(0, 4, (2, 8, 8))
    >>> str(Segmentation([batch], [batch]).evaluate(nn.Conv2d(3, 4, 1)))
    'mIoU ...%, pixels ...%, loss ...'
    """

    metrics = (
        Metric("miou", unit="%", label="mIoU", most=100.0),
        Metric("pixels", unit="%", most=100.0),
        Metric("loss", higher=False, digits=4),
    )

    def __init__(
        self,
        train: Any = None,
        test: Any = None,
        *,
        name: str = "",
        collate: Collate | None = None,
        ignore: int = 255,
    ) -> None:
        super().__init__(train, test, name=name, collate=collate)
        self.ignore = ignore
        self._checked = False

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The mean cross-entropy of the pixels."""
        logits, masks = self._both(model, batch)
        if not self._checked:  # once: reading masks makes a GPU wait
            self._check(logits, masks)
            self._checked = True
        return F.cross_entropy(logits, masks, ignore_index=self.ignore)

    def outcomes(self, model: nn.Module, batch: Any) -> Tensor:
        """Of each image, in pixels: intersections and unions of the classes, right, all, loss."""
        logits, masks = self._both(model, batch)
        self._check(logits, masks)
        counted, classes = masks != self.ignore, torch.arange(logits.shape[1], device=logits.device)
        guesses = logits.argmax(1)[:, None] == classes[:, None, None]
        truths = masks[:, None] == classes[:, None, None]
        guesses &= counted[:, None]
        losses = F.cross_entropy(logits, masks, ignore_index=self.ignore, reduction="none")
        both, either = ((x.flatten(2).sum(2)) for x in (guesses & truths, guesses | truths))
        whole = [x.flatten(1).sum(1, keepdim=True) for x in (counted, losses.double())]
        return torch.cat([both, either, both.sum(1, keepdim=True), *whole], 1)

    def summary(self, totals: Tensor, count: int) -> Sequence[float]:
        """Mean IoU and the share of pixels that are right, in per cent, and their mean loss."""
        both, either = totals[:-3].chunk(2)
        right, pixels, loss = totals[-3:].tolist()
        if not pixels:
            raise ObcError(f"all pixels of the masks are {self.ignore}, which counts for nothing")
        seen = either > 0
        shares = both[seen] / either[seen]
        return 100 * float(shares.mean()), 100 * right / pixels, loss / pixels

    def distance(self, student: Any, teacher: Any, temperature: float) -> Tensor:
        """The divergence of the teacher's and the student's classes, mean over pixels."""
        pixels, others = (segments_of(x).movedim(1, -1).flatten(0, -2) for x in (student, teacher))
        return divergence(pixels, others, temperature)

    def _both(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        """Logits and masks of one size."""
        images, masks = pair(batch, device_of(model))
        logits = segments_of(model(images))
        if logits.ndim == 4 and logits.shape[2:] != masks.shape[1:]:
            logits = F.interpolate(logits, masks.shape[1:], mode="bilinear", align_corners=False)
        return logits, masks

    def _check(self, logits: Tensor, masks: Tensor) -> None:
        if logits.ndim != 4 or masks.ndim != 3:
            raise ObcError(
                "a segmentation puts out [batch, classes, height, width] for masks of [batch, "
                f"height, width], not {list(logits.shape)} for {list(masks.shape)}"
            )
        labels = masks[masks != self.ignore]
        if len(labels) and int(labels.max()) >= logits.shape[1]:
            raise ObcError(
                f"the model knows {logits.shape[1]} classes, but a pixel is {int(labels.max())}; "
                f"ignore={self.ignore} is the value of those that count for nothing"
            )


def segments_of(output: Any) -> Tensor:
    """The logits of a segmentation model: a tensor, `logits` of an object, "out" of a dict."""
    if isinstance(output, Mapping) and "out" in output:
        output = output["out"]
    return logits_of(output)
