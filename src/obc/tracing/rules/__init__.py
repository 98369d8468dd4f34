"""How each kind of operator moves, ties or reads channel ids: one small function per kind.

A rule takes a `Call` and returns the labels of its output (a list of them per tensor, if the
operator returns several). Operators without a rule freeze whatever reaches them.

>>> @rule("mylib::twice")
... def twice(call):
...     return call.labels("x")
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch

from obc.tracing.flow import Call, Rule, freeze_all

_RULES: dict[str, Rule] = {}
F = TypeVar("F", bound=Rule)


def rule(*names: str) -> Callable[[F], F]:
    """Register a rule for operators by schema name; a bare name means `aten::name`."""

    def register(function: F) -> F:
        for name in names:
            _RULES[name if "::" in name else f"aten::{name}"] = function
        find.cache_clear()
        return function

    return register


@cache
def find(func: Any) -> Rule:
    """The rule of an operator; its in-place form follows the same one."""
    name = func._schema.name
    if name in _RULES:
        return _RULES[name]
    if name.endswith("_") and name[:-1] in _RULES:
        return _RULES[name[:-1]]
    if torch.Tag.pointwise in func.tags:
        return _RULES["aten::pointwise"]
    return _unknown


def _unknown(call: Call) -> list[Any]:
    freeze_all(call, f"no rule for {call.func._schema.name}")
    return []


from obc.tracing.rules import contraction, convolution, movement, norms, pointwise, reduction  # noqa: E402

__all__ = [
    "contraction",
    "convolution",
    "find",
    "movement",
    "norms",
    "pointwise",
    "reduction",
    "rule",
]
