"""Parameters that no run on the example reaches: what they may be coupled with stays.

A layer may be waiting for other inputs: an expert that no token was sent to, a branch for large
images. What its module could give it must not get narrower. A single parameter beside others that
were reached, such as a mask token, and a layer that no code around it speaks of are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import Tensor, nn

from obc.tracing.flow import Flow
from obc.tracing.ledger import Place, Reason

_BUILDERS = ("__init__", "reset_parameters", "_reset_parameters", "init_weights", "_init_weights")
_BY_ANY_NAME = {"getattr", "children", "named_children", "modules", "named_modules", "_modules"}
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def held(model: nn.Module, flow: Flow, names: list[str]) -> Iterator[tuple[Tensor, Reason]]:
    """What a layer that was not reached could be coupled with: all of one of its sizes there.

    There means: what the innermost module around it that ran got, made, or gave to the modules
    that it called.
    """
    parts = [leaf.name.split(".") for leaf in flow.leaves.values()]
    around = {".".join(part[:i]) for part in parts for i in range(len(part))}
    tensors = dict(model.named_parameters())
    ran = {path for _, path, _ in flow.handed}
    sizes: dict[str, dict[int, str]] = {}
    for name in names:
        if name.rpartition(".")[0] in around:
            continue
        outer = name.rpartition(".")[0]
        while outer and outer not in ran:
            outer = outer.rpartition(".")[0]
        child = name.removeprefix(f"{outer}.").partition(".")[0]
        if _speaks_of(model.get_submodule(outer), child):
            sizes.setdefault(outer, {}).update({n: name for n in tensors[name].shape if n > 1})
    seen: set[tuple[str, int, int]] = set()
    for outer, ids, place in _met_in(flow, set(sizes)):
        for n in ids.shape:
            key = (outer, ids.data_ptr(), n)
            if n in sizes[outer] and key not in seen:
                seen.add(key)
                yield ids, Reason(f"'{sizes[outer][n]}' was not reached and may be coupled", place)


def _met_in(flow: Flow, paths: set[str]) -> Iterator[tuple[str, Tensor, Place]]:
    """Ids that code of these modules itself could see."""
    for step in flow.steps:
        if step.place.module in paths:
            yield from ((step.place.module, ids, step.place) for ids in step.ids)
    for caller, path, labels in flow.handed:
        for outer in {caller, path} & paths:
            yield from ((outer, ids, Place(path, "", "")) for ids in labels)


def _speaks_of(module: nn.Module, child: str) -> bool:
    """Whether a module's code, but for what builds it, names a child, or may reach any."""
    words = set(_words(module))
    return isinstance(module, _CONTAINERS) or child in words or bool(words & _BY_ANY_NAME)


def _words(module: nn.Module) -> Iterator[str]:
    kinds = (k for k in type(module).__mro__ if issubclass(k, nn.Module) and k is not nn.Module)
    held = {name: value for kind in kinds for name, value in vars(kind).items()} | vars(module)
    for name, value in held.items():
        value = getattr(value, "__func__", getattr(value, "fget", value))
        while value is not None and name not in _BUILDERS:
            if isinstance(value, FunctionType):
                yield from _names_in(value.__code__)
            value = getattr(value, "__wrapped__", None)


def _names_in(code: CodeType) -> Iterator[str]:
    constants: tuple[Any, ...] = code.co_consts
    yield from code.co_names
    for value in constants:
        if isinstance(value, str):  # getattr(self, "extra")
            yield value
        if isinstance(value, CodeType):
            yield from _names_in(value)
