"""Blocks that repeat: what one of them does when narrower, its twins do too.

A deep model is the same block over and over. Two blocks are twins if they are of one class and
ran the same operators on the same shapes, numbers and parameters of their own. Where a block
hands on the channels it was given, as residual blocks do, a later trial may pass by its twins.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from obc.tracing.flow import Flow, ModuleCall

_PLAIN = (bool, int, float, str, type(None), tuple, list)


def repeats(flow: Flow, base: Tensor, model: nn.Module) -> list[ModuleCall]:
    """Calls of blocks whose twin ran before and whose input may stand for their output."""
    modules = dict(model.named_modules())
    times = Counter(call.path for call in flow.calls)
    seen: set[Any] = set()
    twins: list[ModuleCall] = []
    done = 0
    for call in sorted(flow.calls, key=lambda c: (c.begin, -c.end)):  # the outer before the inner
        if call.begin < done or times[call.path] > 1 or not _hands_on(call, base):
            continue
        ran = _ran(flow, call)
        if ran is None:
            continue
        key = (type(modules[call.path]), attribute_kinds(modules[call.path]), ran)
        if key in seen:
            twins.append(call)
            done = call.end
        seen.add(key)
    return twins


def pass_by(model: nn.Module, calls: list[ModuleCall]) -> None:
    """Let these modules hand on what they are given; whoever took a snapshot can undo it."""
    for call in calls:
        model.get_submodule(call.path).forward = _first


def _first(given: Any, *args: Any, **kwargs: Any) -> Any:
    return given


def _hands_on(call: ModuleCall, base: Tensor) -> bool:
    """Whether the channels that leave a module are those that entered it, none tied to another.

    A module that ties them, such as a ghost block its halves, has to run for that to show.
    """
    if call.taken is None or call.given is None:
        return False
    if not all(_apart(ids, base) for ids in call.taken.labels):
        return False
    return len(call.taken.labels) == len(call.given.labels) > 0 and all(
        a is b or (a.shape == b.shape and _same(a, b, base))
        for a, b in zip(call.taken.labels, call.given.labels, strict=True)
    )


def _apart(ids: Tensor, base: Tensor) -> bool:
    ids = ids.unique()
    return bool(ids[0] >= 0) and base[ids].unique().numel() == ids.numel()


def _same(a: Tensor, b: Tensor, base: Tensor) -> bool:
    return bool((a >= 0).all() & (b >= 0).all()) and torch.equal(base[a], base[b])


def _ran(flow: Flow, call: ModuleCall) -> Any:
    """Operators, shapes and numbers of a call, with parameters by their names in the module."""
    prefix = f"{call.path}."
    operators = []
    for (op, *names), given in zip(
        flow.ops[call.begin : call.end], flow.given[call.begin : call.end], strict=True
    ):
        if not all(name.startswith(prefix) for name in names):
            return None
        operators.append((op, *(name.removeprefix(prefix) for name in names), given))
    return tuple(operators)


def attribute_kinds(module: nn.Module) -> Any:
    """What kind of plain attribute each module inside has: a number here and a None there tell."""
    return tuple(
        (name, key, type(value))
        for name, part in module.named_modules()
        for key, value in vars(part).items()
        if isinstance(value, _PLAIN)
    )
