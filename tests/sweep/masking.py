"""Another mathematics of the masked original than obc's: weights of removed channels are zero.

All that this knows is the members of each site and what is kept. Everything that a removed channel
owns is set to zero wherever it stands, so that its activations are zero too, and are recognised by
that: a mean, a norm or a softmax over channels counts only the slices that are not zero throughout,
where as many are zero as a site lost.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

import obc
from tests.sensitive import run, tensors


def masked_outputs(
    model: nn.Module, sites: obc.Sites, kept: Mapping[str, Sequence[int]], example: Any
) -> list[Tensor]:
    """What a model puts out once all that the removed channels own is zero."""
    twin = copy.deepcopy(model)
    parameters = dict(twin.named_parameters())
    gone: dict[tuple[str, int], set[int]] = {}
    for name, channels in kept.items():
        lost = sorted(set(range(sites[name].size)) - set(channels))
        for member in sites[name].members:
            for place in member.places:
                at = gone.setdefault(place, set())
                at.update(member.index[lost].flatten().tolist())
    widths = set()
    for path, module in twin.named_modules():
        if re.search("(Layer|RMS)Norm", type(module).__name__):
            _norm_over_kept(module, sorted(gone.get((f"{path}.weight", 0), ())))
    with torch.no_grad():
        for (name, dim), positions in gone.items():
            parameters[name].index_fill_(dim, torch.tensor(sorted(positions)), 0)
            widths.add((parameters[name].shape[dim], len(positions)))
        with _OverKept(widths):
            return tensors(run(twin, example))


def _norm_over_kept(module: Any, gone: list[int]) -> None:
    """Let a norm, whoever wrote it, see the kept channels only."""
    if not gone or module.weight.ndim > 1:
        return
    size = len(module.weight)
    kept, lost = torch.tensor(sorted(set(range(size)) - set(gone))), torch.tensor(gone)
    narrow = copy.deepcopy(module)
    for name, parameter in module.named_parameters():
        if parameter.shape == (size,):
            setattr(narrow, name, nn.Parameter(parameter.detach()[kept]))
    if hasattr(narrow, "normalized_shape"):
        narrow.normalized_shape = (len(kept),)

    def forward(x: Tensor) -> Tensor:
        # Where a picture is as wide as it has channels, the zeros tell which dimension is which.
        dims = [d for d in (x.ndim - 1, 1) if x.shape[d] == size]
        dim = next(d for d in dims if d == dims[-1] or not x.index_select(d, lost).any())
        part = narrow(x.index_select(dim, kept))
        return torch.zeros_like(x).index_copy(dim, kept, part)

    module.forward = forward


class _OverKept(TorchFunctionMode):
    """Takes statistics over channels without those that are zero."""

    def __init__(self, widths: set[tuple[int, int]]) -> None:
        """`widths` has pairs of a width and how much of it was removed."""
        super().__init__()
        self.widths = widths

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.mean, Tensor.mean):
            return self._mean(func, *args, **kwargs)
        if func in (torch.var, Tensor.var):
            return self._variance(func, *args, **kwargs)
        if func in (F.softmax, torch.softmax, Tensor.softmax):
            return self._softmax(func, *args, **kwargs)
        if func in (F.layer_norm, F.rms_norm, F.group_norm):
            return self._norm(func, *args, **kwargs)
        return func(*args, **kwargs)

    def _kept(self, x: Tensor, dim: int) -> Tensor | None:
        """The slices along a dimension that are not zero throughout; None where all count."""
        others = [d for d in range(x.ndim) if d != dim % x.ndim]
        alive = (x != 0).any(dim=others) if others else x != 0
        removed = int((~alive).sum())
        return alive.nonzero().flatten() if (len(alive), removed) in self.widths else None

    def _narrow(self, x: Tensor, dims: Any) -> Tensor:
        for dim in dims if isinstance(dims, (tuple, list)) else [dims]:
            kept = self._kept(x, dim)
            x = x if kept is None else x.index_select(dim, kept)
        return x

    def _mean(self, func: Any, x: Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        if dim is None:
            return func(x, *args, **kwargs)
        return func(self._narrow(x, dim), dim, *args, **kwargs)

    _variance = _mean

    def _softmax(self, func: Any, x: Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        kept = None if dim is None else self._kept(x, dim)
        if kept is None:
            return func(x, dim, *args, **kwargs)
        part = func(x.index_select(dim, kept), dim, *args, **kwargs)
        return torch.zeros_like(x, dtype=part.dtype).index_copy(dim, kept, part)

    def _norm(self, func: Any, x: Tensor, shape: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Torch's own norms, whose shape is a list of widths or a number of groups."""
        dim = 1 if func is F.group_norm else x.ndim - 1
        kept = self._kept(x, dim)
        if kept is None:
            return func(x, shape, *args, **kwargs)
        if func is F.group_norm:
            shape = len((kept // (x.shape[1] // shape)).unique())
        else:
            shape = [*shape[:-1], len(kept)]
        cut = [t.index_select(-1, kept) if isinstance(t, Tensor) else t for t in args]
        named = {
            k: t.index_select(-1, kept) if isinstance(t, Tensor) else t for k, t in kwargs.items()
        }
        part = func(x.index_select(dim, kept), shape, *cut, **named)
        return torch.zeros_like(x).index_copy(dim, kept, part)
