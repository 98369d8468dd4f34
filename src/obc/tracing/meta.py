"""Operators on the meta device: calls of one kind put out the same shapes, so one of them runs.

Torch works out these shapes in Python, which takes longer than all that a trace does beside it.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor


class _Output(NamedTuple):
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


class Shapes:
    """What operators put out, by operator and arguments.

    >>> shapes, x = Shapes(), torch.zeros(2, 3, device="meta")
    >>> [shapes.run(torch.ops.aten.mm.default, (x, x.t()), {}).shape for _ in range(2)]
    [torch.Size([2, 2]), torch.Size([2, 2])]
    """

    def __init__(self) -> None:
        self._outputs: dict[Any, tuple[type | None, list[_Output]]] = {}

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The output of a call, which is made unless one like it was."""
        try:
            key = (func, _kind(args), _kind(tuple(kwargs.items())))
            known = self._outputs.get(key)
        except (_HasValues, TypeError):  # a tensor elsewhere, or what cannot be looked up
            return func(*args, **kwargs)
        if known is None:
            out = func(*args, **kwargs)
            if _follows(func, args, out):
                self._outputs[key] = _described(out)
            return out
        many, outputs = known
        base = args[0] if _is_view(func) else None
        made = [_made(output, base) for output in outputs]
        return made[0] if many is None else many(made)


class _HasValues(Exception):
    """A tensor that is not on the meta device."""


def _kind(values: Any) -> Any:
    """Arguments as something to look up by: tensors by shape and type, numbers with their type."""
    kinds: list[Any] = []
    for value in values:
        if isinstance(value, Tensor):
            if not value.is_meta:
                raise _HasValues
            kinds.append((value.shape, value.stride(), value.storage_offset(), value.dtype))
        elif isinstance(value, (list, tuple)):
            kinds.append(_kind(value))
        else:
            kinds.append((type(value), value))
    return tuple(kinds)


def _follows(func: Any, args: tuple[Any, ...], out: Any) -> bool:
    """Whether shapes say all about an output: it is new, or a plain view of the first argument."""
    tensors = out if isinstance(out, (tuple, list)) else (out,)
    return (
        not func._schema.is_mutable
        and type(out) in (Tensor, tuple, list)
        and all(type(t) is Tensor and t.is_meta and t.layout is torch.strided for t in tensors)
        and (not _is_view(func) or all(t.dtype is args[0].dtype for t in tensors))
    )


@cache
def _is_view(func: Any) -> bool:
    return any(value.alias_info is not None for value in func._schema.returns)


def _described(out: Any) -> tuple[type | None, list[_Output]]:
    many = isinstance(out, (tuple, list))
    return type(out) if many else None, [
        _Output(t.shape, t.stride(), t.storage_offset(), t.dtype) for t in (out if many else (out,))
    ]


def _made(output: _Output, base: Tensor | None) -> Tensor:
    size, stride, offset, dtype = output
    if base is not None:
        return base.as_strided(size, stride, offset)
    return torch.empty_strided(size, stride, dtype=dtype, device="meta")
