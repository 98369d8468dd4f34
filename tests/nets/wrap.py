"""A model made of a function and the layers it uses, for tests that need a small one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class Wrap(nn.Module):
    """Calls its function with itself and the inputs; layers and parameters are attributes.

    >>> double = Wrap(lambda m, x: m.layer(x) * 2, layer=nn.Identity())
    >>> double(3)
    6
    """

    def __init__(self, function: Callable[..., Any], name: str = "", **layers: Any) -> None:
        super().__init__()
        self.function, self.name = function, name
        for key, layer in layers.items():
            setattr(self, key, layer)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.function(self, *inputs, **named)

    def extra_repr(self) -> str:
        return self.name
