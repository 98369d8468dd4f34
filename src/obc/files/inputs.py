"""Inputs of any batch size, made after an example: new numbers, but only ids that it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim
from torch.utils._pytree import tree_leaves, tree_map_only

from obc.errors import ObcError


class Inputs:
    """What an example says of a model's inputs; the batch is the first dimension of the first.

    >>> inputs = Inputs({"x": torch.zeros(2, 3), "scale": torch.ones(3)})
    >>> inputs.dynamic
    {'x': {0: DimHint(DYNAMIC)}, 'scale': None}
    >>> inputs.fresh(5)["x"].shape
    torch.Size([5, 3])
    """

    def __init__(self, example: Any) -> None:
        tensors = [t for t in tree_leaves(example) if isinstance(t, Tensor) and t.ndim]
        if not tensors:
            raise ObcError("the example holds no tensor with a batch dimension")
        self.example, self.batch = example, len(tensors[0])
        if not self.batch:
            raise ObcError("the example's batch is empty")

    def _batched(self, x: Tensor) -> bool:
        return x.ndim > 0 and len(x) == self.batch

    @property
    def dynamic(self) -> Any:
        """The dimensions that may have any size, in the form that `torch.export` takes."""
        return _with_nothing_for_values(
            self.example, lambda x: {0: Dim.DYNAMIC} if self._batched(x) else None
        )

    def of(self, batch: int) -> Any:
        """The rows of the example, repeated or left out until there are so many."""

        def rows(x: Tensor) -> Tensor:
            if not self._batched(x):
                return x
            return x[torch.arange(batch, device=x.device) % self.batch]

        return tree_map_only(Tensor, rows, self.example)

    def fresh(self, batch: int, seed: int = 0) -> Any:
        """Other numbers of the same spread, and the example's ids in another order."""
        generator = torch.Generator().manual_seed(seed)

        def draw(x: Tensor) -> Tensor:
            if x.is_floating_point():
                spread = x.float().std() if x.numel() > 1 else x.new_ones(())
                # An example of zeros or ones says nothing about the numbers to come.
                scale, shift = (float(spread), float(x.float().mean())) if spread > 0 else (1, 0)
                return (torch.randn(x.shape, generator=generator) * scale + shift).to(x)
            if x.is_complex() or x.dtype == torch.bool or int(x.max()) <= 1:
                return x  # masks and flags stay whole
            order = torch.randint(x.numel(), x.shape, generator=generator)
            return x.reshape(-1)[order.to(x.device)]

        return tree_map_only(Tensor, lambda x: draw(x) if x.numel() else x, self.of(batch))


def _with_nothing_for_values(example: Any, spec: Callable[[Tensor], Any]) -> Any:
    """The example's structure with a specification for each tensor and None for other values."""
    if isinstance(example, Tensor):
        return spec(example)
    if isinstance(example, dict):
        return {k: _with_nothing_for_values(v, spec) for k, v in example.items()}
    if isinstance(example, (tuple, list)):
        return type(example)(_with_nothing_for_values(v, spec) for v in example)
    return None
