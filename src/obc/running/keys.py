"""A decoder without the keys and values that it keeps for the next token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def without_keys(model: nn.Module) -> Iterator[None]:
    """Inside, a model of transformers keeps no keys and values unless its call asks for them.

    >>> from types import SimpleNamespace
    >>> model = nn.Identity()
    >>> model.config = SimpleNamespace(use_cache=True)
    >>> with without_keys(model):
    ...     print(model.config.use_cache)
    False
    >>> model.config.use_cache
    True
    """
    config: Any = getattr(model, "config", None)
    cache = getattr(config, "use_cache", None)
    try:
        if cache:
            config.use_cache = False
        yield
    finally:
        if cache:
            config.use_cache = cache
