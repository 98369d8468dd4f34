"""Models that accelerate offloads: their weights are mapped from the disk while a verb works.

A dispatched model loads an offloaded weight just before its module runs and drops it after, so
nothing is there for a gradient, a cut or a fit. While a verb works, the weight is a tensor in a
scratch file instead, and the hooks are away; then the hooks are back, and what was changed has gone
to where the weight came from, one tensor at a time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from obc.errors import ObcError
from obc.running.mapping import mapped
from obc.running.modules import walk
from obc.running.snapshot import Snapshot

_P = ParamSpec("_P")
_R = TypeVar("_R")
_HOOK = ("forward", "_old_forward", "_hf_hook")  # what accelerate sets on a module


def at_hand(verb: Callable[_P, _R]) -> Callable[_P, _R]:
    """A verb that works on offloaded models too: their weights are at hand until it returns."""

    @wraps(verb)
    def work(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with ExitStack() as stack:
            for value in (*args, *kwargs.values()):
                if isinstance(value, nn.Module):
                    stack.enter_context(_mapped(value))
            return verb(*args, **kwargs)

    return work


class _Place:
    """A weight of a module that is offloaded: where it is kept, and what stands for it."""

    def __init__(self, name: str, module: nn.Module, key: str, weights: Any) -> None:
        self.name, self.module, self.key = name, module, key
        self._weights, self._entry = weights, key
        if hasattr(weights, "dataset"):  # accelerate's view of one map for all modules
            self._weights, self._entry = weights.dataset, f"{weights.prefix}{key}"
        self.meta = module._parameters[key]

    @property
    def folder(self) -> str:
        """A folder on the disk that the weights may lie in; the user's own, if there is one."""
        return str(getattr(self._weights, "save_folder", None) or _scratch())

    def value(self) -> Tensor:
        tensor: Tensor = self._weights[self._entry]
        return tensor

    def put(self, tensor: nn.Parameter) -> None:
        self.module._parameters[self.key] = tensor

    def keep(self, tensor: Tensor) -> None:
        """Keep a new value in the memory or on the disk, as the old one was."""
        index = getattr(self._weights, "index", {})
        if self._entry not in index:
            memory = getattr(self._weights, "state_dict", self._weights)
            memory[self._entry] = tensor.detach().clone()
            return
        from safetensors.torch import save_file

        # A file of its own: copies of the model still read the old one.
        folder = tempfile.mkdtemp(dir=self.folder, prefix="obc-")
        path = Path(folder) / "weight.safetensors"
        save_file({self._entry: tensor.detach()}, path)
        index[self._entry] = {
            "safetensors_file": str(path),
            "weight_name": self._entry,
            "dtype": str(tensor.dtype).removeprefix("torch."),
        }

    def leave(self, tensor: nn.Parameter) -> None:
        """Nothing but a shape is left in the module."""
        meta = self.meta
        assert meta is not None
        if meta.shape != tensor.shape:
            meta = type(tensor)(torch.empty_like(tensor, device="meta"), tensor.requires_grad)
            meta.__dict__.update(tensor.__dict__)
        self.module._parameters[self.key] = meta


@contextmanager
def _mapped(model: nn.Module) -> Iterator[None]:
    """Offloaded weights in scratch files, without accelerate's hooks, until the end."""
    places = list(_places(model))
    if not places:
        yield
        return
    hooks = [(m, _taken(m)) for _, m in walk(model) if "_hf_hook" in vars(m)]
    try:
        tensors = _filled(places, getattr(model, "all_tied_weights_keys", None) or {})
        versions = {id(t): t._version for t in tensors}
        before = Snapshot(model)
        yield
        try:
            _written(places, versions)
        except BaseException:
            before.restore()
            raise
    finally:
        for place in places:
            tensor = place.module._parameters.get(place.key)
            if tensor is not None:
                place.leave(tensor)
        for module, held in hooks:
            module.__dict__.update(held)


def _places(model: nn.Module) -> Iterator[_Place]:
    for name, module in model.named_modules():
        hook = getattr(module, "_hf_hook", None)
        for part in getattr(hook, "hooks", [hook]):
            if getattr(part, "offload", False):
                if torch.device(part.execution_device).type != "cpu":
                    raise ObcError(
                        f"'{name}' is offloaded from {part.execution_device}; load the model with "
                        "a device_map of 'cpu' and 'disk' alone, or without offloading"
                    )
                for key, parameter in module._parameters.items():
                    if parameter is not None:
                        yield _Place(f"{name}.{key}".lstrip("."), module, key, part.weights_map)


def _taken(module: nn.Module) -> dict[str, Any]:
    """Take accelerate's hook off a module; what to put back."""
    held = {key: module.__dict__.pop(key) for key in _HOOK if key in module.__dict__}
    old = held["_old_forward"]
    if getattr(old, "__func__", None) is not type(module).forward:
        module.__dict__["forward"] = old  # somebody else's, from before accelerate's
    return held


def _filled(places: list[_Place], ties: dict[str, str]) -> list[nn.Parameter]:
    """Put mapped weights in; tied ones are one tensor. Returns the tensors."""
    tensors: dict[str, nn.Parameter] = {}
    for place in places:
        meta = place.meta
        assert meta is not None
        same = ties.get(place.name, place.name)
        if same not in tensors:
            tensors[same] = type(meta)(mapped(place.value(), place.folder), meta.requires_grad)
            tensors[same].__dict__.update(meta.__dict__)
        place.put(tensors[same])
    return list(tensors.values())


def _written(places: list[_Place], versions: dict[int, int]) -> None:
    """Keep what was changed or replaced."""
    gone = next((p.name for p in places if p.key not in p.module._parameters), None)
    if gone is not None:
        raise ObcError(
            f"'{gone}' is offloaded, and C and D would take its place; load the model without "
            "offloading"
        )
    for place in places:
        tensor = place.module._parameters[place.key]
        if tensor is not None and versions.get(id(tensor)) != tensor._version:
            place.keep(tensor)


@cache
def _scratch() -> str:
    """A folder until the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="obc-")
    _held.append(folder)
    return folder.name


_held: list[tempfile.TemporaryDirectory[str]] = []
