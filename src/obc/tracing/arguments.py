"""What an operator or a module was called with: names, arguments, and the tensors among them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves


@cache
def schema_name(func: Any) -> str:
    return str(func._schema.name)


@cache
def short_name(func: Any) -> str:
    return schema_name(func).removeprefix("aten::")


def bind(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by the names in the operator's schema."""
    defaults = _defaults(func)
    return {**defaults, **dict(zip(defaults, args, strict=False)), **kwargs}


@cache
def _defaults(func: Any) -> dict[str, Any]:
    return {
        a.name: a.default_value if a.has_default_value() else None for a in func._schema.arguments
    }


def tensors_in(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among an operator's arguments or results, of which some are lists."""
    tensors = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += [t for t in value if isinstance(t, Tensor)]
    return tensors


def tensors_within(value: Any) -> list[Tensor]:
    """The tensors in what a module takes and puts out."""
    if isinstance(value, Tensor):
        return [value]
    if type(value) in (tuple, list):
        return [t for part in value if part is not None for t in tensors_within(part)]
    return [t for t in tree_leaves(value) if isinstance(t, Tensor)]


def shapes_and_numbers(values: Iterable[Any]) -> tuple[Any, ...]:
    """An operator's arguments, with shapes for tensors."""
    return tuple(
        [
            v.shape
            if isinstance(v, Tensor)
            else shapes_and_numbers(v)
            if isinstance(v, (list, tuple))
            else v
            for v in values
        ]
    )
