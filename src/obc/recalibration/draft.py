"""Changes of a model that can be taken back, and made for good when all went well."""

from __future__ import annotations

import torch
from torch import Tensor

from obc.running.mapping import kept_as

Written = list[tuple[Tensor, Tensor]]
"""Tensors of a model, and the values that they are to have."""


class Draft:
    """Writes to tensors in place and remembers what was there.

    >>> weight, draft = torch.zeros(2), Draft()
    >>> draft.write(weight, torch.ones(2))
    >>> written = draft.written()
    >>> draft.take_back()
    >>> weight
    tensor([0., 0.])
    >>> commit(written)
    >>> weight
    tensor([1., 1.])
    """

    def __init__(self) -> None:
        self._before: Written = []

    def write(self, tensor: Tensor, value: Tensor) -> None:
        """Put a value into a tensor, whatever its type."""
        self._before.append((tensor.detach(), kept_as(tensor.detach().clone(), tensor)))
        commit([(tensor, value)])

    def written(self) -> Written:
        """What `commit` needs to write all of it again."""
        return [(tensor, kept_as(tensor.clone(), tensor)) for tensor, _ in self._before]

    def take_back(self) -> None:
        """Undo everything."""
        commit(self._before[::-1])
        self._before.clear()


def commit(written: Written) -> None:
    """Write values into their tensors."""
    with torch.no_grad():
        for tensor, value in written:
            tensor.detach().copy_(value)
