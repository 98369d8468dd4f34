"""What each kind of layer says about its sizes: where its channels are, and how it is resized.

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
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from obc.errors import ObcError
from obc.running.modules import named_tensors, walk

Kind = type[nn.Module] | str
"""A class, or its full name where importing its library for it would be too much."""

Kept = Mapping[tuple[str, int], Tensor]
"""What a module keeps: (name of a parameter within it, dimension) to the kept positions."""

Handler = Callable[[Any, Kept], None]
_HANDLERS: dict[Kind, Handler] = {}
_CONV1D = "transformers.pytorch_utils.Conv1D"  # a linear layer, stored the other way round
T = TypeVar("T")


class Axes(NamedTuple):
    """Where a kind of layer has its channels.

    `out` and `reads` are the dimensions of its weight that run over what it puts out and what it
    reads (of an embedding: the rows it picks from; of a norm: None); `data` is the dimension of
    its input and output activations.
    """

    out: int
    reads: int | None
    data: int


AXES: dict[Kind, Axes] = {
    nn.Linear: Axes(0, 1, -1),
    _CONV1D: Axes(1, 0, -1),
    nn.Embedding: Axes(1, 0, -1),
    nn.Conv1d: Axes(0, 1, -2),
    nn.Conv2d: Axes(0, 1, -3),
    nn.Conv3d: Axes(0, 1, -4),
    nn.ConvTranspose1d: Axes(1, 0, -2),
    nn.ConvTranspose2d: Axes(1, 0, -3),
    nn.ConvTranspose3d: Axes(1, 0, -4),
    nn.BatchNorm1d: Axes(0, None, 1),
    nn.BatchNorm2d: Axes(0, None, 1),
    nn.BatchNorm3d: Axes(0, None, 1),
    nn.GroupNorm: Axes(0, None, 1),
    nn.LayerNorm: Axes(0, None, -1),
    nn.RMSNorm: Axes(0, None, -1),
}


def plain_axes(module: nn.Module) -> Axes | None:
    """The axes of a layer that computes just what its library wrote; None for any other.

    >>> plain_axes(nn.ConvTranspose2d(2, 3, 1))
    Axes(out=1, reads=0, data=-3)
    """
    kind = _kind(AXES, type(module))
    same = kind is not None and type(module).forward is kind.forward
    return _entry(AXES, kind) if same and "forward" not in vars(module) else None


def handler(*kinds: Kind) -> Callable[[Handler], Handler]:
    """Register what is to be set in layers of a class, and of those derived from it, after a cut.

    A string is the full name of a class: "transformers.pytorch_utils.Conv1D".
    """
    for kind in kinds:
        if isinstance(kind, str) and "." not in kind:
            raise ObcError(
                f"'{kind}' could be anyone's class; give the class itself, or its full name "
                f"such as '{_CONV1D}'"
            )

    def register(function: Handler) -> Handler:
        _HANDLERS.update(dict.fromkeys(kinds, function))
        return function

    return register


def find_handler(module: nn.Module) -> Handler | None:
    """The handler of the nearest class that a module is derived from."""
    return _entry(_HANDLERS, _kind(_HANDLERS, type(module)))


def _kind(table: Mapping[Kind, T], kind: type) -> Any:
    """The nearest class in the line of descent that a table knows."""
    return next((c for c in kind.__mro__ if _entry(table, c) is not None), None)


def _entry(table: Mapping[Kind, T], kind: type | None) -> T | None:
    if kind is None:
        return None
    return table.get(kind) or table.get(f"{kind.__module__}.{kind.__qualname__}")


def cut(
    model: nn.Module, kept: Kept, how: Callable[[Tensor, dict[int, Tensor]], Tensor]
) -> dict[Tensor, Tensor]:
    """Cut parameters and buffers in place and tell their layers; returns the new ones by the old.

    `how` makes the smaller tensor from the old one and {dimension: kept positions}.
    """
    by_name: dict[str, dict[int, Tensor]] = {}
    for (name, dim), index in kept.items():
        by_name.setdefault(name, {})[dim] = index
    tensors, modules = named_tensors(model), walk(model)
    dims_of = {id(tensors[name]): dims for name, dims in by_name.items()}
    new = {tensors[name]: how(tensors[name], dims) for name, dims in by_name.items()}
    by_kind = {kind: find_handler(m) for kind, m in {type(m): m for _, m in modules}.items()}
    fixes = {path: fix for path, m in modules if (fix := by_kind[type(m)]) is not None}
    kept_of: dict[str, dict[tuple[str, int], Tensor]] = {}
    for path, module in modules:
        for store in (module._parameters, module._buffers):
            for key, tensor in store.items():
                if tensor is not None and id(tensor) in dims_of:
                    store[key] = new[tensor]  # type: ignore[assignment]
                    _note(kept_of, path, key, dims_of[id(tensor)], fixes)
    for path, module in modules:
        if path in kept_of:
            _cut_derived(module, kept_of[path])
            if path in fixes:
                fixes[path](module, kept_of[path])
    return new


def _cut_derived(module: nn.Module, kept: dict[tuple[str, int], Tensor]) -> None:
    """Cut the weight that hooks of `weight_norm`, `spectral_norm` and `prune` left beside theirs.

    Each run makes it anew, but until then it tells its layer of the old sizes.
    """
    for (name, dim), index in list(kept.items()):
        weight, _, ending = name.rpartition("_")
        left = vars(module).get(weight) if ending in ("orig", "v") else None
        if isinstance(left, Tensor):
            vars(module)[weight] = left.detach().index_select(dim, index.to(left.device))
            kept[weight, dim] = index


def _note(
    kept_of: dict[str, dict[tuple[str, int], Tensor]],
    path: str,
    key: str,
    dims: dict[int, Tensor],
    fixes: Mapping[str, Handler],
) -> None:
    """Note what is kept of a tensor for its module and those around it that have a handler."""
    outer, inner = path, key
    while True:
        if outer == path or outer in fixes:
            inside = kept_of.setdefault(outer, {})
            inside.update({(inner, dim): index for dim, index in dims.items()})
        if not outer:
            return
        outer, _, last = outer.rpartition(".")
        inner = f"{last}.{inner}"


def _widths(module: Any) -> tuple[int, int]:
    """How much a weight puts out and how much it reads."""
    axes = _entry(AXES, _kind(AXES, type(module)))
    assert axes is not None and axes.reads is not None
    return module.weight.shape[axes.out], module.weight.shape[axes.reads]


@handler(
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d
)
def convolution(module: Any, kept: Kept) -> None:
    """The first dimension of the weight spells out all groups, the second is one group's."""
    rows = kept.get(("weight", 0))
    if rows is not None and module.groups > 1:
        per_group = (
            module.in_channels if module.transposed else module.out_channels
        ) // module.groups
        module.groups = len(torch.unique(rows // per_group))
    writes, reads = _widths(module)
    module.in_channels = reads if module.transposed else reads * module.groups
    module.out_channels = writes * module.groups if module.transposed else writes


@handler(nn.Linear)
def linear(module: Any, kept: Kept) -> None:
    module.out_features, module.in_features = _widths(module)


@handler(_CONV1D)
def conv1d_of_hugging_face(module: Any, kept: Kept) -> None:
    module.nf, module.nx = _widths(module)


@handler(nn.Embedding)
def embedding(module: Any, kept: Kept) -> None:
    module.embedding_dim, module.num_embeddings = _widths(module)


@handler(nn.modules.batchnorm._NormBase)
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
