"""Running a model as it is, in eval mode, and leaving nothing behind."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from obc.running.modules import walk
from obc.running.randomness import forked

Run = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""How an operator is run on its arguments."""


class _Writes(TorchDispatchMode):
    """Keeps what was in a tensor of the model or the example before it is first written to.

    Tensors on the meta device have no values; a model that asks for one is told "yes", or 1. Models
    ask whether a mask is all ones, a sequence not packed: the plain case is a yes.
    """

    def __init__(self, tensors: list[Tensor], run: Run | None) -> None:
        super().__init__()
        self._run = run
        self._held = {t.untyped_storage()._cdata: t for t in tensors}
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.is_mutable:
            for x in tree_leaves((args, kwargs)):
                if isinstance(x, Tensor):
                    self._keep(x.untyped_storage()._cdata)
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            warnings.warn(
                "the model asks for a value that a meta tensor does not have; took 1", stacklevel=2
            )
            return torch.ones((), dtype=args[0].dtype).item()
        # One who watches operators does so from here: a second mode would cost as much again.
        if self._run is not None:
            with torch._C.DisableTorchFunction():  # what it does to tensors is no part of the run
                return self._run(func, args, kwargs or {})
        return func(*args, **kwargs) if kwargs else func(*args)

    def _keep(self, storage: int) -> None:
        if storage in self._held and storage not in self._before:
            held = self._held[storage]
            self._before[storage] = (held, held.detach().clone())

    def undo(self) -> None:
        with torch.no_grad():
            for tensor, value in self._before.values():
                if not tensor.is_meta:
                    tensor.copy_(value)


def forward(model: nn.Module, example: Any, training: bool = False, run: Run | None = None) -> Any:
    """Run a model on an example, in eval mode if nothing else is said, and leave no trace.

    There are no gradients, and what is drawn or overwritten on the way is put back. `run` takes
    each operator with its arguments, and returns what it puts out.
    """
    args, kwargs = arguments(example)
    with quiet(model, example, training, run):
        return model(*args, **kwargs)


def arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments from what a user may pass as an example."""
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, (tuple, list)):
        return tuple(example), {}
    return (example,), {}


@contextmanager
def quiet(
    model: nn.Module, example: Any, training: bool = False, run: Run | None = None
) -> Iterator[None]:
    """One mode, no gradients, no fused attention; what the run overwrites is put back."""
    modules = [module for _, module in walk(model)]
    modes = [(m, m.training) for m in modules]
    tensors = [p for m in modules for p in m._parameters.values() if p is not None]
    buffers = [b for m in modules for b in m._buffers.values() if b is not None]
    inputs = [t for t in tree_leaves(example) if isinstance(t, Tensor)]
    writes = _Writes([*tensors, *buffers, *inputs], run)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    for module, mode in modes:  # a batch norm in train mode refuses single samples
        new = training and not isinstance(module, nn.modules.batchnorm._BatchNorm)
        if new is not mode:
            module.training = new
    try:
        with torch.no_grad(), forked(tensors), writes:
            yield
    finally:
        writes.undo()
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, training in modes:
            if module.training is not training:
                module.training = training


def outputs(value: Any, counts: bool = False) -> list[Tensor]:
    """The tensors and fractions a model returns, in containers and plain objects too; no caches.

    With `counts`, whole numbers too.

    >>> outputs({"logits": [torch.zeros(2)], "temperature": 0.5, "label": 3})
    [tensor([0., 0.]), tensor(0.5000)]
    """
    kinds = (Tensor, float, int) if counts else (Tensor, float)
    return [
        leaf if isinstance(leaf, Tensor) else torch.tensor(leaf)
        for leaf in _leaves(value, set())
        if isinstance(leaf, kinds)
    ]


def closed(value: Any) -> list[str]:
    """What a model returns that cannot be looked into: it may hold anything.

    >>> closed({"boxes": torch.zeros(0, 4), "rest": iter([])})
    ['list_iterator']
    """
    kinds = (type(v).__name__ for v in _leaves(value, set()) if not isinstance(v, _LEAVES))
    return list(dict.fromkeys(kinds))


_LEAVES = (Tensor, float, int, complex, str, bytes, type(None), torch.dtype, torch.device, Enum)


def _leaves(value: Any, seen: set[int]) -> Iterator[Any]:
    """Whatever holds nothing else, or cannot be looked into."""
    parts = None if isinstance(value, _LEAVES) else _parts(value)
    if isinstance(value, Tensor):
        yield value
        written = vars(value).values() if id(value) not in seen else ()
        seen.add(id(value))
        for part in [v for v in written if isinstance(v, Tensor)]:
            yield from _leaves(part, seen)
    elif parts is None:
        yield value
    elif id(value) not in seen and not any("Cache" in kind.__name__ for kind in type(value).mro()):
        seen.add(id(value))
        for part in parts:
            yield from _leaves(part, seen)


def _parts(value: Any) -> list[Any] | None:
    """What a container or an object of a plain class holds."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (tuple, list, set, frozenset, deque)):
        return list(value)
    if isinstance(value, (type, ModuleType, FunctionType, MethodType, nn.Module)):
        return None
    slots = [s for kind in type(value).mro() for s in getattr(kind, "__slots__", ())]
    # An object with more than slots and a dictionary was written in C, and holds what it likes.
    hidden = type(value).__basicsize__ > object.__basicsize__ + 8 * (2 + len(slots))
    if hidden or (not slots and not hasattr(value, "__dict__")):
        return None
    held = [getattr(value, s) for s in slots if s != "__dict__" and hasattr(value, s)]
    return [*held, *getattr(value, "__dict__", {}).values()]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; each module's own mode afterwards."""
    modes = [(m, m.training) for m in model.modules()]
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
