"""`Classification`: one label for each input, judged by top-1 accuracy."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Unpack

from obc.data.catalog import Data
from obc.data.images import Batch, Images
from obc.data.order import Order
from obc.data.sources import moved
from obc.errors import ObcError
from obc.models.fitting import fitted
from obc.tasks.evaluation import Metric
from obc.tasks.task import Task, device_of

_AUGMENTATIONS = ("crop", "flip", "rand_augment", "mixup", "cutmix", "erasing")


class Classification(Task):
    """Cross-entropy, top-1 and top-5 on images of `obc.data`, or on batches of (inputs, labels).

    With fewer than five classes top-5 counts them all.

    >>> batch = (torch.randn(8, 2), torch.randint(0, 3, (8,)))
    >>> Classification([batch], [batch]).evaluate(nn.Linear(2, 3)).top5
    100.0
    """

    metrics = (
        Metric("top1", unit="%", label="top-1", most=100.0),
        Metric("top5", unit="%", label="top-5", most=100.0),
        Metric("loss", higher=False, digits=4),
    )
    # As good as N = 50 and p = 1/400, for a fraction of the scoring: docs/planning.md.
    planning: Mapping[str, Any] = {**Task.planning, "rows": 10, "step": 0.02, "expected": True}

    def __init__(self, train: Any = None, test: Any = None, *, name: str = "") -> None:
        super().__init__(train, test, name=name)
        self.label_smoothing, self.repeats = 0.0, 1
        self.augmentation: dict[str, Any] = {}
        self._checked = False

    @classmethod
    def of(cls, data: Data) -> Classification:
        """The task of a data set from `obc.data.load`."""
        return cls(data.train, data.test, name=data.name)

    @property
    def images(self) -> Images | None:
        """The images, where the data are images of ours."""
        data = self.train if self.train is not None else self.test
        return data if isinstance(data, Images) else None

    def fitted(self, model: str) -> str:
        """The name of a model with as many inputs and classes as the images have."""
        images = self.images
        return model if images is None else fitted(model, images.shape, len(images.classes))

    def example(self) -> Any:
        """The first test image, or the first inputs of a batch."""
        if isinstance(self.test, Images):
            return next(self.test.test(1)).images
        return super().example()

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Cross-entropy; labels may be classes, or shares of each class."""
        inputs, labels = pair(batch, device_of(model))
        logits = logits_of(model(inputs))
        if not self._checked:  # once: reading labels makes a GPU wait
            self._check(logits, labels)
            self._checked = True
        return F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)

    def outcomes(self, model: nn.Module, batch: Any) -> Tensor:
        """Of each sample: right at once, right among five, its cross-entropy."""
        inputs, labels = pair(batch, device_of(model))
        logits = logits_of(model(inputs))
        self._check(logits, labels)
        best = logits.topk(min(5, logits.shape[1]), 1).indices == labels[:, None]
        loss = F.cross_entropy(logits, labels, reduction="none")
        return torch.stack([best[:, 0].to(loss.dtype), best.any(1).to(loss.dtype), loss], 1)

    def total(self, outcomes: Tensor) -> Tensor:
        """As `cross_entropy` sums, so that a loss has the very bits of a plain evaluation."""
        zeros = torch.zeros(len(outcomes), dtype=torch.long, device=outcomes.device)
        loss = F.nll_loss(-outcomes[:, 2:], zeros, reduction="sum")
        return torch.cat([outcomes[:, :2].sum(0), loss[None]]).double()

    def summary(self, totals: Tensor, count: int) -> Sequence[float]:
        """Two accuracies in per cent and the mean loss."""
        top1, top5, loss = totals.tolist()
        return 100 * top1 / count, 100 * top5 / count, loss / count

    def distance(self, student: Any, teacher: Any, temperature: float) -> Tensor:
        """The divergence of the teacher's and the student's classes."""
        return divergence(logits_of(student), logits_of(teacher), temperature)

    def changed(self, **options: Any) -> Classification:
        """With a recipe's augmentation and label smoothing."""
        task = copy.copy(self)
        task.label_smoothing = options.pop("label_smoothing", self.label_smoothing)
        if options and not isinstance(self.train, Images):
            name = next(iter(options))
            raise ObcError(
                f"{name}: batches of your own bring their own augmentation; "
                "recipes augment images of obc.data"
            )
        task.repeats = options.pop("repeated_augmentation", self.repeats)
        unknown = next((name for name in options if name not in _AUGMENTATIONS), None)
        if unknown is not None:
            raise ObcError(f"{unknown}: classification has no such option")
        task.augmentation = {**self.augmentation, **options}
        return task

    def training(
        self, size: int, *, device: torch.device | None = None, **order: Unpack[Order]
    ) -> Iterator[Any]:
        """As `Task.training`; images are augmented where the model is."""
        images, repeats = self.train, self.repeats
        if not isinstance(images, Images):
            return super().training(size, device=device, **order)
        if not self.augmentation:
            return images.train(size, repeats=repeats, device=device, **order)
        from obc.data.augment import Augment  # kornia takes as long to import as torch itself

        augment = Augment(images.shape[1:], len(images.classes), **self.augmentation)
        batches = images.train(size, repeats=repeats, change=augment.views, device=device, **order)
        return (Batch(*augment.mix(*batch)) for batch in batches)

    def _check(self, logits: Tensor, labels: Tensor) -> None:
        """Refuse a model that puts out another number of classes than the data has."""
        if logits.ndim != 2:
            raise ObcError(f"a classifier puts out [batch, classes], not {list(logits.shape)}")
        known, images = logits.shape[1], self.images
        if images is not None:
            if known != len(images.classes):
                there = len(images.classes)
                raise ObcError(f"the model knows {known} classes, the data has {there}")
        elif labels.ndim == 1 and len(labels) and int(labels.max()) >= known:
            raise ObcError(f"the model knows {known} classes, but a label is {int(labels.max())}")


def divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T² · KL(softmax(teacher / T) ‖ softmax(student / T)), mean over rows (Hinton et al., 2015).

    T² keeps the gradient's size whatever the temperature.

    >>> logits = torch.tensor([[1.0, 2.0]])
    >>> divergence(logits, logits, 4.0)
    tensor(0.)
    """
    kl = F.kl_div(
        F.log_softmax(student / temperature, 1),
        F.log_softmax(teacher / temperature, 1),
        reduction="batchmean",
        log_target=True,
    )
    return temperature**2 * kl


def logits_of(output: Any) -> Tensor:
    """The logits of a model that puts out a tensor, or an object that holds them.

    Half precision is left here: losses and accuracies are taken of float32 at least.
    """
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def pair(batch: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """Inputs and labels on the model's device; an HF batch is a dict of them."""
    if isinstance(batch, dict) and len(batch) == 2:
        label = next((n for n in ("labels", "label") if n in batch), None)
        if label is not None:
            (inputs,) = (v for n, v in batch.items() if n != label)
            batch = (inputs, batch[label])
    two = isinstance(batch, (tuple, list)) and len(batch) == 2
    if not two or not all(isinstance(part, Tensor) for part in batch):
        raise ObcError("each batch must be a pair of tensors, inputs and labels")
    inputs, labels = moved(tuple(batch), device)
    return inputs, labels
