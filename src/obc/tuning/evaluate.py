"""`obc.evaluate`: top-1 and top-5 accuracy, and the mean loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from obc.data import Batch, Images
from obc.errors import ObcError
from obc.running.forward import evaluating
from obc.tuning.distill import logits_of


@dataclass(frozen=True)
class Score:
    """Accuracies in per cent; with fewer than five classes top-5 counts them all."""

    top1: float
    top5: float
    loss: float

    def __str__(self) -> str:
        return f"top-1 {self.top1:.2f}%, top-5 {self.top5:.2f}%, loss {self.loss:.4f}"


def evaluate(model: nn.Module, data: Any) -> Score:
    """Score a classifier on images of `obc.data`, or on any batches of (inputs, labels).

    The model is in eval mode meanwhile and as it was afterwards.

    >>> net = nn.Linear(2, 3)
    >>> batch = (torch.randn(8, 2), torch.randint(0, 3, (8,)))
    >>> evaluate(net, [batch]).top5
    100.0
    """
    return scored(counted(model, data, 0, 1))


@torch.no_grad()
def counted(model: nn.Module, data: Any, rank: int, world: int) -> Tensor:
    """One process's share of the sums: right at once, right among five, loss, images."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    sums = torch.zeros(4, dtype=torch.float64, device=device)
    with evaluating(model):
        for images, labels in pairs(data, rank, world, device):
            logits = logits_of(model(images))
            check_classes(logits, labels, data)
            best = logits.topk(min(5, logits.shape[1]), 1).indices == labels[:, None]
            loss = F.cross_entropy(logits, labels, reduction="sum")
            sums += torch.stack(
                [best[:, 0].sum(), best.any(1).sum(), loss, loss.new_tensor(len(labels))]
            ).double()
    return sums


def scored(sums: Tensor) -> Score:
    top1, top5, loss, count = sums.tolist()
    if not count:
        raise ObcError("there is nothing to evaluate on")
    return Score(100 * top1 / count, 100 * top5 / count, loss / count)


def check_classes(logits: Tensor, labels: Tensor, data: Any) -> None:
    """Refuse a model that puts out another number of classes than the data has."""
    if logits.ndim != 2:
        raise ObcError(f"a classifier puts out [batch, classes], not {list(logits.shape)}")
    there = logits.shape[1]
    if isinstance(data, Images):
        if there != len(data.classes):
            raise ObcError(f"the model knows {there} classes, the data has {len(data.classes)}")
    elif labels.ndim == 1 and len(labels) and int(labels.max()) >= there:
        raise ObcError(f"the model knows {there} classes, but a label is {int(labels.max())}")


def pairs(data: Any, rank: int, world: int, device: torch.device) -> Iterator[Batch]:
    """One process's share of what is evaluated, in order."""
    if isinstance(data, Images):
        yield from data.test(rank=rank, world=world, device=device)
        return
    for position, batch in enumerate(data):
        if position % world == rank:
            yield moved(batch, device)


def moved(batch: Any, device: torch.device) -> Batch:
    """A batch of the user's, checked, where the model is."""
    pair = isinstance(batch, (tuple, list)) and len(batch) == 2
    if not pair or not all(isinstance(part, Tensor) for part in batch):
        raise ObcError("each batch must be a pair of tensors, inputs and labels")
    return Batch(*(part.to(device) for part in batch))
