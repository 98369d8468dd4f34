"""C W Dᵀ by products in bfloat16, where the user lets torch round float32 products so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Side = tuple[Tensor, Tensor, int]
"""A matrix [kept, size] near the identity's rows, which rows those are, and what it mixes."""

_LEAST = 1 << 17  # elements of a weight; casting smaller ones takes longer than their products


def allowed(x: Tensor) -> bool:
    """Whether products of float32 may be rounded to bfloat16, and are faster for it.

    `torch.set_float32_matmul_precision("medium")` allows it. Accelerators follow that by
    themselves, and so do compiled models; a processor without instructions for bfloat16 takes
    many times as long. Small weights stay exact, as they gain nothing.
    """
    return (
        not torch.compiler.is_compiling()
        and torch.get_float32_matmul_precision() == "medium"
        and x.dtype == torch.float32
        and x.numel() >= _LEAST
        and x.device.type == "cpu"
        and (_has("avx512_bf16") or _has("amx_tile"))
    )


def _has(instructions: str) -> bool:
    asked: Any = getattr(torch.cpu, f"_is_{instructions}_supported", None)
    return asked is not None and bool(asked())


def mixed(x: Tensor, sides: Sequence[Side]) -> Tensor:
    """A tensor whose dimensions 0 and 1 are mixed, one side after the other.

    With C = S + E, S the rows of the identity that are kept, C x = S x + E x. S x is exact, so
    that entries near one keep their updates; only the change E x is a product of bfloat16, summed
    in float32, and off by about 2⁻⁹ of itself. So are gradients.

    >>> x, matrix = torch.randn(3, 5), torch.eye(3)[[0, 2]]
    >>> torch.equal(mixed(x, [(matrix, torch.tensor([0, 2]), 0)]), x[[0, 2]])
    True
    """
    apply: Any = _Mixed.apply
    matrices, kept, dims = zip(*sides, strict=True)
    small: Tensor = apply(x, kept, dims, *matrices)
    return small


class _Mixed(torch.autograd.Function):
    """All between the first and the last product stays in bfloat16."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, kept: Sequence[Tensor], dims: Sequence[int], *matrices: Tensor
    ) -> Tensor:
        exact, half, change = x, x.bfloat16(), None
        read: list[Tensor] = []
        for matrix, rows, dim in zip(matrices, kept, dims, strict=True):
            rest = matrix.clone()
            rest[torch.arange(len(rows), device=rows.device), rows] -= 1
            flat = _flat(half, dim)
            read.append(flat)
            product = rest.bfloat16() @ flat if dim == 0 else flat @ rest.bfloat16().t()
            exact = exact.index_select(dim, rows)
            # Sums of tensors that lie alike take a tenth of the time of others.
            new = _shaped(product, exact.shape, dim).contiguous()
            if len(read) < len(matrices):
                half = half.index_select(dim, rows).add_(new)
            change = new if change is None else change.index_select(dim, rows).add_(new)
        assert change is not None
        ctx.save_for_backward(*read, *matrices)
        ctx.dims = dims
        return exact.add_(change)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        count = len(ctx.dims)
        read, matrices = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        half, of_matrices = grad.bfloat16(), []
        for flat, matrix, dim in reversed(list(zip(read, matrices, ctx.dims, strict=True))):
            above, by = _flat(half, dim), matrix.bfloat16()
            product = above @ flat.t() if dim == 0 else above.t() @ flat
            of_matrices.append(product.to(grad.dtype))
            shape = [matrix.shape[1] if i == dim else n for i, n in enumerate(half.shape)]
            half = _shaped(by.t() @ above if dim == 0 else above @ by, shape, dim)
        return half.contiguous().to(grad.dtype), None, None, *reversed(of_matrices)


def _flat(x: Tensor, dim: int) -> Tensor:
    """A matrix: [size, rest] of the first dimension, [rest, size] of another."""
    return x.flatten(1) if dim == 0 else x.movedim(dim, -1).flatten(0, -2)


def _shaped(flat: Tensor, shape: Sequence[int], dim: int) -> Tensor:
    """What `_flat` has made flat, as a view of a shape."""
    if dim == 0:
        return flat.view(shape)
    left = [size for i, size in enumerate(shape) if i != dim]
    return flat.view(*left, shape[dim]).movedim(-1, dim)
