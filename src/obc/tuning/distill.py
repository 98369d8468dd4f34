"""Distillation: what the unpruned model says of a batch counts beside its labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def logits_of(output: Any) -> Tensor:
    """The logits of a model that puts out a tensor, or an object that holds them.

    Half precision is left here: losses and accuracies are taken of float32 at least.
    """
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


@torch.no_grad()
def ask(teacher: nn.Module, images: Tensor) -> Tensor:
    """The teacher's logits; to be asked once per batch."""
    return logits_of(teacher(images))


def distilled(
    loss: Tensor, student: Tensor, teacher: Tensor, coefficient: float, temperature: float
) -> Tensor:
    """(1 − c) · loss + c · T² · KL(softmax(teacher / T) ‖ softmax(student / T)).

    T² keeps the gradient's size whatever the temperature.

    >>> x = torch.tensor([[1.0, 2.0]])
    >>> distilled(torch.tensor(3.0), x, x, 0.5, 4.0)
    tensor(1.5000)
    """
    divergence = F.kl_div(
        F.log_softmax(student / temperature, 1),
        F.log_softmax(teacher / temperature, 1),
        reduction="batchmean",
        log_target=True,
    )
    return (1 - coefficient) * loss + coefficient * temperature**2 * divergence
