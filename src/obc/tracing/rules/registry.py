"""`obc.rule`: everything obc knows of an operator, declared once.

>>> @rule("mylib::twice", scales=True)
... def twice(call):
...     return call.labels("x")
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeVar

import torch

from obc.errors import ObcError
from obc.tracing.flow import Call, Rule, freeze_all
from obc.tracing.rules.products import Formula

Kind = Literal["linear", "norm", "view"]
F = TypeVar("F", bound=Rule)


@dataclass(frozen=True)
class Operator:
    """What is declared of an operator; see `rule`."""

    labels: Rule
    mixes: bool = False
    scales: bool = False
    kind: Kind | None = None
    macs: Formula | None = None


_OPERATORS: dict[str, Operator] = {}


def rule(
    *names: str,
    mixes: bool = False,
    scales: bool = False,
    kind: Kind | None = None,
    macs: Formula | None = None,
) -> Callable[[F], F]:
    """Declare operators: how channel ids pass through them, and what else obc has to know.

    The decorated function takes the `Call` and returns the labels of the output, one list per
    tensor if there are several; on the way it ties, freezes or marks ids in `call.ledger`. An
    operator without a rule freezes the channels that reach it.

    Args:
        names: schema names, "mylib::twice"; a bare name means `aten::name`. The in-place form
            follows the same rule.
        mixes: the result of one channel depends on others without a weight between them, as in
            a softmax or a mean; a masked run then computes it on the kept channels alone.
        scales: f(a x) = a f(x) for a > 0, channel by channel, so that the sum of x df/dx is the
            same before and after (Euler) and a criterion may read it on either side.
        kind: "linear" and "norm" operators are layers; a "view" is what a layer may do to its
            output before handing it on.
        macs: multiply-accumulates as sums of products of the operands' dimensions; None leaves
            it to the formulas of `torch.utils.flop_counter`, or to zero.
    """
    if not names or not all(isinstance(name, str) for name in names):
        raise ObcError('rule takes the schema names of operators: @obc.rule("mylib::twice")')

    def register(labels: F) -> F:
        operator = Operator(labels, mixes, scales, kind, macs)
        for name in names:
            _OPERATORS[name if "::" in name else f"aten::{name}"] = operator
        find.cache_clear()
        return labels

    return register


@cache
def find(func: Any) -> Operator:
    """What is declared of an operator; pointwise ones that torch tags as such share a rule."""
    name = func._schema.name
    if name in _OPERATORS:
        return _OPERATORS[name]
    if name.endswith("_") and name[:-1] in _OPERATORS:
        return _OPERATORS[name[:-1]]
    if torch.Tag.pointwise in func.tags:
        return _OPERATORS["aten::pointwise"]
    return _UNKNOWN


def _freeze(call: Call) -> list[Any]:
    freeze_all(call, f"no rule for {call.func._schema.name}")
    return []


_UNKNOWN = Operator(_freeze)
