"""Inputs for the shared models: the same numbers each time, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

Example: TypeAlias = Tensor | tuple[Any, ...] | dict[str, Any]


def floats(*shape: int, seed: int = 1) -> Tensor:
    """Random numbers in float64, the same each time."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def tokens(vocabulary: int, *shape: int, seed: int = 2) -> Tensor:
    """Random token ids, the same each time; the first few are left to padding and the like."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocabulary, shape, generator=generator)


def text(
    vocabulary: int = 53, length: int = 11, padded: bool = False, **more: Any
) -> dict[str, Any]:
    """Token ids by keyword, the last ones of the first row masked if asked."""
    ids = tokens(vocabulary, 2, length)
    if padded:
        mask = torch.ones_like(ids)
        mask[0, -3:] = 0
        more["attention_mask"] = mask
    return {"input_ids": ids, **more}


def image(size: int, channels: int = 3, batch: int = 2) -> Callable[[], Tensor]:
    """Square images."""
    return lambda: floats(batch, channels, size, size)


def pixels(size: int) -> Callable[[], Example]:
    """Square images under the name Hugging Face gives them."""
    return lambda: {"pixel_values": floats(2, 3, size, size)}


def rows(*shape: int) -> Callable[[], Tensor]:
    """Vectors or sequences of them."""
    return lambda: floats(*shape)


def memory() -> Example:
    """A sequence and a longer one to look into."""
    return floats(2, 7, 5), floats(2, 9, 4, seed=3)
