"""What code decides by a width: `if C < 8`, `C % 4`, `min(C, 32)`.

No flow of ids shows such a decision, and one narrower model may happen to take the same side. So
the sizes that code reads off tensors in flight are numbers that note when they are compared.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from obc.tracing.flow import Flow, user_line

_SHAPE, _SIZE = torch.Tensor.shape.__get__, torch.Tensor.size  # type: ignore[attr-defined]
_REMAINS = ("add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "rfloordiv", "neg")
_DECIDES = ("mod", "rmod", "divmod", "and", "rand", "lt", "le", "gt", "ge", "bool")


class Decisions(TorchFunctionMode):
    """A mode under which a flow runs; `numbers` are those that widths were compared with.

    What is decided by the width itself, as in `if C & (C - 1)`, counts as a comparison with 1.

    A width that is found equal to another number is no decision: either the number follows, or
    the first narrower model shows that it does not. One that is found different may be equal next.
    """

    def __init__(self, flow: Flow) -> None:
        super().__init__()
        self.numbers: dict[int, None] = {}  # in the order in which they were met
        self._flow = flow

    def note(self, other: object = 1) -> None:
        if isinstance(other, int):
            self.numbers[int(other)] = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if (func == _SHAPE or func is _SIZE) and user_line(sys._getframe(1), 0):
            return self._noting(args[0], result, args[1] if len(args) > 1 else None)
        return result

    def _noting(self, tensor: Tensor, result: Any, dim: Any) -> Any:
        mark = getattr(tensor, "_obc_flow", None)
        if mark is None or mark[0] is not self._flow:
            return result
        wide = {d for label in mark[1].labels for d, n in enumerate(label.shape) if n > 1}
        if isinstance(result, torch.Size):
            sizes = [_Width(n, self) if d in wide else n for d, n in enumerate(result)]
            return torch.Size(sizes) if wide else result
        return _Width(result, self) if dim is not None and dim % tensor.ndim in wide else result


class _Width(int):
    """A size of labelled channels; numbers that are made of it are such sizes, too."""

    def __new__(cls, value: int, decisions: Decisions) -> _Width:
        width = super().__new__(cls, value)
        width.decisions = decisions
        return width

    decisions: Decisions

    def __eq__(self, other: object) -> bool:
        same = int.__eq__(self, other)
        if same is False:
            self.decisions.note(other)
        return same

    def __ne__(self, other: object) -> bool:
        differs = int.__ne__(self, other)
        if differs is True:
            self.decisions.note(other)
        return differs

    __hash__ = int.__hash__


def _remaining(name: str) -> Callable[..., Any]:
    plain = getattr(int, f"__{name}__")

    def method(self: _Width, *others: Any) -> Any:
        result = plain(self, *others)
        return _Width(result, self.decisions) if type(result) is int else result

    return method


def _deciding(name: str) -> Callable[..., Any]:
    plain = getattr(int, f"__{name}__")

    def method(self: _Width, *others: Any) -> Any:
        self.decisions.note(*others)
        return plain(self, *others)

    return method


for _name in _REMAINS:
    setattr(_Width, f"__{_name}__", _remaining(_name))
for _name in _DECIDES:
    setattr(_Width, f"__{_name}__", _deciding(_name))
