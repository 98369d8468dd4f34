"""What a model puts out while somebody else runs it: how a student is laid beside its teacher."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def listening(model: nn.Module) -> Iterator[list[Any]]:
    """The outputs of all runs of a model inside, in their order.

    A task's loss runs the model as it must be run, so that nobody else needs to know how.

    >>> import torch
    >>> model = nn.Linear(2, 1)
    >>> with listening(model) as outputs:
    ...     _ = model(torch.zeros(3, 2)).sum()
    >>> [tuple(output.shape) for output in outputs]
    [(3, 1)]
    """
    outputs: list[Any] = []
    handle = model.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    try:
        yield outputs
    finally:
        handle.remove()
