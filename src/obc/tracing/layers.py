"""What each kind of layer says about its own sizes, and how to say it again after a cut.

Parameters are cut by index alone, whatever the layer. What else a layer knows of its sizes
(`in_channels`, `groups`, `num_heads` ...) is set by its handler, one function per kind:

>>> class Scale(nn.Module):
...     def __init__(self, width):
...         super().__init__()
...         self.width, self.weight = width, nn.Parameter(torch.ones(width))
>>> @handler(Scale)
... def scale(module, kept):
...     module.width = module.weight.numel()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from obc.running.modules import named_tensors

Kept = Mapping[tuple[str, int], Tensor]
"""What a module keeps: (name of a parameter within it, dimension) to the kept positions."""

Handler = Callable[[Any, Kept], None]
_HANDLERS: dict[str, Handler] = {}


def handler(*kinds: type[nn.Module] | str) -> Callable[[Handler], Handler]:
    """Register a handler by class, or by class name where the class lives in another library."""

    def register(function: Handler) -> Handler:
        for kind in kinds:
            _HANDLERS[kind if isinstance(kind, str) else kind.__name__] = function
        return function

    return register


def find_handler(module: nn.Module) -> Handler | None:
    return next(
        (_HANDLERS[c.__name__] for c in type(module).__mro__ if c.__name__ in _HANDLERS), None
    )


def cut(
    model: nn.Module, kept: Kept, how: Callable[[Tensor, dict[int, Tensor]], Tensor]
) -> dict[Tensor, Tensor]:
    """Cut parameters and buffers in place and tell their layers; returns the new ones by the old.

    `how` makes the smaller tensor from the old one and {dimension: kept positions}.
    """
    wanted: dict[str, dict[int, Tensor]] = {}
    for (name, dim), index in kept.items():
        wanted.setdefault(name, {})[dim] = index
    tensors = named_tensors(model)
    dims_of = {id(tensors[name]): dims for name, dims in wanted.items()}
    new = {tensors[name]: how(tensors[name], dims) for name, dims in wanted.items()}
    told: dict[str, dict[tuple[str, int], Tensor]] = {}
    for path, module in model.named_modules():
        for store in (module._parameters, module._buffers):
            for key, tensor in store.items():
                if tensor is not None and id(tensor) in dims_of:
                    store[key] = new[tensor]
                    _tell(told, f"{path}.{key}" if path else key, dims_of[id(tensor)])
    for path, module in model.named_modules():
        fix = find_handler(module) if path in told else None
        if fix is not None:
            fix(module, told[path])
    return new


def _tell(
    told: dict[str, dict[tuple[str, int], Tensor]], name: str, dims: dict[int, Tensor]
) -> None:
    """Note for every module around a tensor what is kept of it, by its name within the module."""
    parts = name.split(".")
    for i in range(len(parts)):
        own = told.setdefault(".".join(parts[:i]), {})
        own.update({(".".join(parts[i:]), dim): index for dim, index in dims.items()})


@handler(
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d
)
def convolution(module: Any, kept: Kept) -> None:
    turned = int(module.transposed)
    rows = kept.get(("weight", 0))
    if rows is not None and module.groups > 1:
        per_group = (module.in_channels if turned else module.out_channels) // module.groups
        module.groups = len(torch.unique(rows // per_group))
    reads, writes = module.weight.shape[1 - turned], module.weight.shape[turned]
    module.in_channels = reads if turned else reads * module.groups
    module.out_channels = writes * module.groups if turned else writes


@handler(nn.Linear)
def linear(module: Any, kept: Kept) -> None:
    module.out_features, module.in_features = module.weight.shape


@handler("Conv1D")
def conv1d_of_hugging_face(module: Any, kept: Kept) -> None:
    module.nx, module.nf = module.weight.shape


@handler(nn.Embedding)
def embedding(module: Any, kept: Kept) -> None:
    module.num_embeddings, module.embedding_dim = module.weight.shape


@handler("_NormBase")
def batch_norm(module: Any, kept: Kept) -> None:
    module.num_features = len(next(iter(kept.values())))


@handler(nn.LayerNorm, nn.RMSNorm)
def layer_norm(module: Any, kept: Kept) -> None:
    module.normalized_shape = tuple(module.weight.shape)


@handler(nn.PReLU)
def prelu(module: Any, kept: Kept) -> None:
    module.num_parameters = module.weight.numel()


@handler(nn.GroupNorm)
def group_norm(module: Any, kept: Kept) -> None:
    rows = kept["weight", 0]
    per_group = module.num_channels // module.num_groups
    module.num_groups = len(torch.unique(rows // per_group))
    module.num_channels = module.weight.numel()
