"""Streams activations x gradients past each layer, so that no weight gradient is needed.

For a layer y = W x + b with gradient δ at y: W[o]·∂W[o] + b[o] ∂b[o] = Σ y_o δ_o, and
W[:, i]·∂W[:, i] = Σ x_i ξ_i, with ξ the gradient that this layer alone sends back to x. For a norm
layer y = γ z + β: γ ∂γ + β ∂β = Σ y δ. Nothing is kept but these sums. docs/method.md derives them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from obc.criteria.structure import Part
from obc.tracing.layers import Axes, plain_axes
from obc.tracing.wiring import Wiring

Key = tuple[str, str]
"""A layer and the role in which its sums are taken: "out", "in" or "norm"."""

_CHUNK = 1 << 20  # products of this many numbers stay in the cache


class InPlace(Exception):
    """An activation was overwritten before its gradient came; it has to be copied."""

    def __init__(self, layer: str) -> None:
        super().__init__(layer)
        self.layer = layer


def streams(part: Part, model: nn.Module, wiring: Wiring) -> bool:
    """Whether a structural parameter's products can be taken from activations."""
    if any(wiring.users.get(m.name) != frozenset({part.layer}) for m in part.members):
        return len(part.members) == 1 and bool(_tied(part, model, wiring))
    module: Any = model.get_submodule(part.layer)
    names = {m.param for m in part.members}
    if not _plain(module):
        return False
    if part.role == "in":
        return names == {"weight"}
    if module.weight is None or ("bias" in names) != (getattr(module, "bias", None) is not None):
        return False
    return "weight" in names and (part.role == "out" or bool(module.weight.ndim == 1))


def keys_of(part: Part, model: nn.Module, wiring: Wiring) -> list[Key]:
    """The sums that make up a part's products: one, or one for each layer that a weight serves."""
    alone = wiring.users.get(part.members[0].name) == frozenset({part.layer})
    return [(part.layer, part.role)] if alone else _tied(part, model, wiring)


def _tied(part: Part, model: nn.Module, wiring: Wiring) -> list[Key]:
    """Of a weight that an embedding puts out and a head reads, say, one sum for each of them.

    The gradient of a shared weight is the sum over its layers, so the products add up too. Empty
    where a layer adds a bias of its own, or is none that can be watched.
    """
    keys: list[Key] = []
    for layer in sorted(wiring.users.get(part.members[0].name, ())):
        module: Any = model.get_submodule(layer)
        axes = plain_axes(module) if isinstance(module, (nn.Linear, nn.Embedding)) else None
        if axes is None or not _plain(module) or getattr(module, "bias", None) is not None:
            return []
        keys.append((layer, "out" if part.members[0].dim == axes.out else "in"))
        if isinstance(module, nn.Embedding) and keys[-1][1] == "in":
            return []  # rows that it picks from are no activations
    return keys


def _plain(module: nn.Module) -> bool:
    """A layer that runs just as torch, or transformers for its Conv1D, wrote it."""
    if plain_axes(module) is None or hasattr(module, "parametrizations"):
        return False
    if isinstance(module, nn.Embedding):
        return module.max_norm is None and not module.scale_grad_by_freq and not module.sparse
    return True


class Probe:
    """Hooks on layers that sum activations times gradients while a backward pass runs.

    `sums[layer, role]` is [rows, channels, tensors]; `apart` keeps a norm's scale and shift apart.
    `starts` are the tensors at which the graph begins.
    """

    def __init__(self, model: nn.Module, per_sample: bool, apart: bool) -> None:
        self.model, self.per_sample, self.apart = model, per_sample, apart
        self.copied: set[str] = set()
        self.sums: dict[Key, Tensor] = {}
        self.starts: list[Tensor] = []
        self._hooks: list[Any] = []

    def watch(self, keys: Iterable[Key]) -> None:
        """Forget the last row and put hooks on just these layers."""
        self.release()
        self.sums.clear()
        self.starts.clear()
        for layer, role in keys:
            module = self.model.get_submodule(layer)
            if role == "in":
                hook = module.register_forward_pre_hook(self._reader(layer))
            else:
                hook = module.register_forward_hook(self._writer(layer, role))
            self._hooks.append(hook)

    def release(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _started(self, y: Tensor) -> Tensor:
        """With all weights frozen, the first layers have to begin the graph."""
        if y.requires_grad or not torch.is_grad_enabled():
            return y
        start = y.detach().requires_grad_()
        self.starts.append(start)
        return start.clone()

    def _add(self, key: Key, value: Tensor) -> None:
        self.sums[key] = self.sums[key] + value if key in self.sums else value

    def _writer(self, layer: str, role: str) -> Any:
        def hook(module: Any, inputs: Any, output: Tensor) -> Tensor:
            y = self._started(output)
            if not y.requires_grad:
                return y
            seen = _Seen(y, layer, copy=layer in self.copied)
            axis = _axes(module).data

            def backward(grad: Tensor) -> None:
                value = seen.value()
                if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                    value = value * (inputs[0] != module.padding_idx).unsqueeze(-1)
                total = self._product(value, grad, axis)
                bias = getattr(module, "bias", None)
                if role == "norm" and bias is not None and self.apart:
                    shift = self._total(grad, axis) * bias.detach().to(total.dtype)
                    self._add((layer, role), torch.stack([total - shift, shift], -1))
                else:
                    self._add((layer, role), total.unsqueeze(-1))

            y.register_hook(backward)
            return y

        return hook

    def _reader(self, layer: str) -> Any:
        def hook(module: Any, inputs: Any) -> Any:
            x = inputs[0]
            if not x.requires_grad:
                return None
            alone = x.view_as(x)  # a node of its own: its gradient comes from this layer only
            seen = _Seen(x, layer, copy=layer in self.copied)
            axis = _axes(module).data

            def backward(grad: Tensor) -> None:
                self._add((layer, "in"), self._product(seen.value(), grad, axis).unsqueeze(-1))

            alone.register_hook(backward)
            return (alone, *inputs[1:])

        return hook

    def _product(self, a: Tensor, b: Tensor, axis: int) -> Tensor:
        """Sum of a x b over all but the channels, [rows, channels], in float32 or better."""
        rows = []
        step = max(1, _CHUNK * len(a) // max(a.numel(), 1))
        for one, two in zip(a.split(step), b.split(step), strict=True):
            if one.dtype in (torch.float16, torch.bfloat16):
                one, two = one.float(), two.float()
            rows.append(self._fold(one * two, axis))
        return torch.cat(rows) if self.per_sample else torch.stack(rows).sum(0)

    def _total(self, b: Tensor, axis: int) -> Tensor:
        return self._fold(b.float() if b.dtype in (torch.float16, torch.bfloat16) else b, axis)

    def _fold(self, x: Tensor, axis: int) -> Tensor:
        axis %= x.ndim
        if axis == 0:  # a single example without a batch dimension
            return x.flatten(1).sum(1)[None] if x.ndim > 1 else x[None]
        dims = [d for d in range(1, x.ndim) if d != axis]
        x = x.sum(dims) if dims else x
        return x if self.per_sample else x.sum(0, keepdim=True)


class _Seen:
    """An activation held until its gradient comes, unless someone wrote over it."""

    def __init__(self, tensor: Tensor, layer: str, copy: bool) -> None:
        self._tensor = tensor.detach().clone() if copy else tensor.detach()
        self._version = self._tensor._version
        self._layer = layer

    def value(self) -> Tensor:
        if self._tensor._version != self._version:
            raise InPlace(self._layer)
        return self._tensor


def _axes(module: nn.Module) -> Axes:
    axes = plain_axes(module)
    assert axes is not None, "only plain layers are watched"
    return axes


def positions(part: Part, module: Any, sums: Tensor) -> Tensor:
    """Sums by channel, folded to the positions of the weight's dimension: groups share theirs."""
    # The second dimension of a grouped weight is one group's; all groups share its positions.
    shared = getattr(module, "groups", 1) > 1 and part.members[0].dim == 1
    if shared and part.members[0].param == "weight":
        sums = sums.unflatten(1, (module.groups, -1)).sum(1)
    index = part.members[0].index.to(sums.device)
    return sums[:, index].sum(2)
