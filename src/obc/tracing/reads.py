"""Which numbers and lists a model reads from its modules and configurations as it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn


class Reads:
    """The attributes that were read."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, str]] = set()

    def __contains__(self, attribute: tuple[Any, str]) -> bool:
        """Whether this one was; of an object that cannot be watched, any may have been."""
        owner, name = attribute
        return (id(owner), name) in self.seen or not _watchable(type(owner))


@contextmanager
def recorded(model: nn.Module) -> Iterator[Reads]:
    """Whole numbers and lists that are read inside, from modules or configurations of a model."""
    reads = Reads()
    configurations = (vars(m).get("config") for m in model.modules())
    kinds: set[type[Any]] = {nn.Module, *(type(c) for c in configurations if c is not None)}
    with ExitStack() as stack:
        for kind in filter(_watchable, kinds):
            stack.enter_context(_watched(kind, reads.seen))
        yield reads


def _watchable(kind: type) -> bool:
    """Whether a class was made by Python code, and may be changed by it."""
    return bool(kind.__flags__ & 1 << 9)  # Py_TPFLAGS_HEAPTYPE


@contextmanager
def _watched(kind: type[Any], seen: set[tuple[int, str]]) -> Iterator[None]:
    changed: Any = kind
    inherited = "__getattribute__" not in vars(kind)
    original = changed.__getattribute__

    def get(self: Any, name: str) -> Any:
        value = original(self, name)
        if type(value) in (int, list, tuple):
            seen.add((id(self), name))
        return value

    changed.__getattribute__ = get
    try:
        yield
    finally:
        if inherited:
            del changed.__getattribute__
        else:
            changed.__getattribute__ = original
