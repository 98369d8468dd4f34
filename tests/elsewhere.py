"""A second device that computes without a GPU: CPU tensors that pass for those of another device.

Its tensors report the device `elsewhere`, of which torch has no kernels. Whoever gives one to an
operator together with a plain CPU tensor gets an error, as from a GPU; a single number may come
from the CPU. A process that imports this has the device for good, so give it one of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

_COPIES = ("aten::_to_copy", "aten::copy_")


class _Module(backend_registration._DummyBackendModule):
    """What torch asks of a device's module: that there is one device, with random numbers."""

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


backend_registration._setup_privateuseone_for_python_backend("elsewhere", _Module())
DEVICE = torch.device("elsewhere", 0)


class Elsewhere(Tensor):
    """A tensor of the second device, with its numbers in a CPU tensor."""

    __slots__ = ("inside",)  # what is in its dictionary may be copied to another tensor
    inside: Tensor

    @staticmethod
    def __new__(cls, inside: Tensor, requires_grad: bool = False) -> Elsewhere:
        inside = inside.inside if isinstance(inside, Elsewhere) else inside.detach()
        self: Elsewhere = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inside.shape,
            strides=inside.stride(),
            storage_offset=inside.storage_offset(),
            dtype=inside.dtype,
            device=DEVICE,
            requires_grad=requires_grad,
        )
        self.inside = inside
        return self

    def __init__(self, inside: Tensor, requires_grad: bool = False) -> None: ...

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Elsewhere({self.inside})"

    def __deepcopy__(self, memo: Any) -> Any:
        twin: Tensor = type(self)(self.inside.clone())
        if isinstance(self, nn.Parameter):
            twin = nn.Parameter(twin, self.requires_grad)
        memo[id(self)] = twin
        return twin

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl


def compute(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator on the numbers inside; refuse a mixture of devices."""
    name = func._schema.name
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    here = any(isinstance(t, Elsewhere) for t in tensors)
    asked = kwargs.get("device")
    if here and name not in _COPIES:
        strangers = [t for t in tensors if not isinstance(t, Elsewhere) and t.ndim]
        if strangers:
            raise RuntimeError(f"{name} was given tensors on {DEVICE.type} and on the CPU")
    result_here = here if asked is None else torch.device(asked).type == DEVICE.type
    if name == "aten::copy_":
        result_here = isinstance(args[0], Elsewhere)
    if asked is not None:
        kwargs = {**kwargs, "device": "cpu"}
    unwrapped = tree_map_only(Elsewhere, lambda t: t.inside, (args, kwargs))
    out = func(*unwrapped[0], **unwrapped[1])
    if not result_here:
        return out
    wrapped = tree_map_only(Tensor, lambda t: t if isinstance(t, Elsewhere) else Elsewhere(t), out)
    return return_and_correct_aliasing(func, args, kwargs, wrapped)


class _Factories(TorchDispatchMode):
    """Makes tensors of the second device where no tensor argument says so."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        asked = kwargs.get("device")
        if asked is not None and torch.device(asked).type == DEVICE.type:
            return compute(func, args, kwargs)
        return func(*args, **kwargs)


def _from_numbers(data: Any, *, device: Any = None, **kwargs: Any) -> Tensor:
    """`torch.tensor`, which reaches for a device's memory past any dispatch."""
    there = device is not None and torch.device(device).type == DEVICE.type
    made: Tensor = _TENSOR(data, device="cpu" if there else device, **kwargs)
    return made.to(DEVICE) if there else made


_TENSOR = torch.tensor


@contextmanager
def elsewhere() -> Iterator[torch.device]:
    """The device, inside of which it can be used."""
    with _Factories(), mock.patch.object(torch, "tensor", _from_numbers):
        yield DEVICE


def call(model: nn.Module, batch: Tensor) -> Any:
    """Runs a model in a thread of its own, to which the caller's modes do not reach."""
    with _Factories():
        return model(batch)
