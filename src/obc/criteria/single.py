"""Gradients of single samples, all samples of a batch at once and in bounded memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

_NUMBERS = 1 << 26  # single gradients held at a time: a quarter of a gigabyte in float32


class _Losses(nn.Module):
    """A model with its loss, so that both can be called with other parameters."""

    def __init__(self, model: nn.Module, loss: Callable[[Any, Any], Tensor]) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, batch: Any) -> Tensor:
        return self.loss(self.model, batch).reshape(())


def _chunks(
    model: nn.Module, loss: Callable[[Any, Any], Tensor], batch: Any, names: list[str]
) -> Iterator[dict[str, Tensor]]:
    """Gradients [samples, *shape] of the named parameters, a few samples at a time."""
    losses = _Losses(model, loss)
    tensors = {n: model.get_parameter(n).detach() for n in names}
    leaves, spec = tree_flatten(batch)
    count = next(x.shape[0] for x in leaves if isinstance(x, Tensor) and x.ndim)
    along = [isinstance(x, Tensor) and x.ndim > 0 and x.shape[0] == count for x in leaves]

    def one(parameters: dict[str, Tensor], *sample: Any) -> Tensor:
        rows = [x.unsqueeze(0) if a else x for x, a in zip(sample, along, strict=True)]
        named = {f"model.{n}": p for n, p in parameters.items()}
        result: Tensor = functional_call(losses, named, (tree_unflatten(rows, spec),))
        return result

    step = min(count, max(1, _NUMBERS // max(1, sum(t.numel() for t in tensors.values()))))
    gradients = _alone(one, along) if step == 1 else _together(one, along)
    start = 0
    while start < count:
        part = [x[start : start + step] if a else x for x, a in zip(leaves, along, strict=True)]
        try:
            chunk = gradients(tensors, *part)
        except RuntimeError:
            if step == 1:
                raise
            # Some models ask for values on the way, which samples run together do not have.
            warnings.warn(
                "the model cannot run its samples together; one by one is slow", stacklevel=2
            )
            step, gradients = 1, _alone(one, along)
            continue
        yield chunk
        start += step


def _together(one: Callable[..., Tensor], along: list[bool]) -> Callable[..., dict[str, Tensor]]:
    """Gradients of all samples at once."""
    return vmap(grad(one), in_dims=(None, *(0 if a else None for a in along)))


def _alone(one: Callable[..., Tensor], along: list[bool]) -> Callable[..., dict[str, Tensor]]:
    """The same for a single sample, by plain autograd: `torch.func` hides values in any case."""

    def gradients(tensors: dict[str, Tensor], *sample: Any) -> dict[str, Tensor]:
        rows = [x[0] if a else x for x, a in zip(sample, along, strict=True)]
        leaves = {n: t.detach().requires_grad_() for n, t in tensors.items()}
        with torch.enable_grad():
            result = one(leaves, *rows)
        if not result.requires_grad:  # it reaches none of them, as experts it was not sent to
            return {n: torch.zeros_like(t).unsqueeze(0) for n, t in tensors.items()}
        single = torch.autograd.grad(result, list(leaves.values()), materialize_grads=True)
        return {n: g.unsqueeze(0) for n, g in zip(leaves, single, strict=True)}

    return gradients


def squares(
    model: nn.Module, loss: Callable[[Any, Any], Tensor], batch: Any, names: list[str]
) -> dict[str, Tensor]:
    """The sum over samples of each gradient's square: the diagonal Fisher information."""
    total: dict[str, Tensor] = {}
    for chunk in _chunks(model, loss, batch, names):
        for name, g in chunk.items():
            square = g.to(torch.promote_types(g.dtype, torch.float32)).square().sum(0)
            total[name] = total[name] + square if name in total else square
    return total


def per_sample(
    model: nn.Module, loss: Callable[[Any, Any], Tensor], batch: Any, names: list[str]
) -> dict[str, Tensor]:
    """The gradient of each single sample, [samples, *shape]."""
    chunks = list(_chunks(model, loss, batch, names))
    return {name: torch.cat([chunk[name] for chunk in chunks]) for name in names}
