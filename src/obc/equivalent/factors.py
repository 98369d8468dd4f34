"""Ŵ = C W Dᵀ as a parametrization: the full weight stays, the layer computes with the small one.

C mixes what a layer puts out, D what it reads. Both act on channels. A channel that owns several
places of a dimension (the features of a head, the two halves of a gate) has a matrix for each of
them; places that are only positions of one channel (a flattened map) share one.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import permutations
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from obc.equivalent import rounded


@dataclass(frozen=True)
class Block:
    """Channels that are mixed with each other along one dimension.

    `reads` are the places of each channel in the full dimension, [places, size, positions], and
    `writes` those in the cut one, [places, kept, positions]. `kept` are the channels that stay.
    """

    reads: Tensor
    writes: Tensor
    kept: Tensor

    @property
    def macs(self) -> int:
        """For each element of a slice of the weight."""
        return self.reads.numel() * len(self.kept)


class Mix(nn.Module):
    """C or D along one dimension of a weight: for each block a stack of matrices [kept, size].

    With `groups`, each group of a grouped convolution, along dimension 0, has its own stack.
    """

    order: Tensor | None
    back: Tensor | None

    def __init__(self, blocks: list[Block], dim: int, width: int, groups: int = 1) -> None:
        super().__init__()
        self.dim, self.full, self.groups = dim, width, groups
        self.macs = sum(b.macs for b in blocks)
        self.sizes = [b.reads.numel() for b in blocks]
        self.positions = [b.reads.shape[2] for b in blocks]
        self.matrices = nn.ParameterList(
            torch.eye(b.reads.shape[1])[b.kept].repeat(groups * len(b.reads), 1, 1) for b in blocks
        )
        order = _with_rest([b.reads for b in blocks], width)
        self.untouched = width - sum(self.sizes)
        self.cut = sum(b.writes.numel() for b in blocks) + self.untouched
        back = _with_rest([b.writes for b in blocks], self.cut).argsort()
        # The plan tells them again, so they are no part of the state dict.
        self.register_buffer("order", _unless_plain(order), persistent=False)
        self.register_buffer("back", _unless_plain(back), persistent=False)
        self._kept = blocks[0].kept  # no buffer: files hold buffers, and older files not this one
        single = len(blocks) == 1 and self.matrices[0].shape[0] == 1 and self.positions == [1]
        self.plain = single and self.order is None and self.back is None and not self.untouched

    @property
    def kept(self) -> Tensor:
        """The channels that stay, where this is plain."""
        return self._kept.to(self.matrices[0].device)

    @property
    def matrix(self) -> Tensor:
        """The only one, where this is plain."""
        only: Tensor = self.matrices[0]
        return only.squeeze(0)

    def of_bias(self, bias: Tensor) -> Tensor:
        """The bias of the outputs that this mixes."""
        if self.groups > 1:  # the weight shares its outputs between groups, the bias spells them
            return self.along(bias.view(self.groups, -1), 1).flatten()
        return self.along(bias.unsqueeze(1), 0).squeeze(1)

    def along(self, x: Tensor, dim: int) -> Tensor:
        """A tensor whose dimension `dim` is mixed down to the kept channels."""
        if not self.plain:
            return self._in_blocks(x, dim)
        if dim == 0:
            return (self.matrix @ x.flatten(1)).reshape(-1, *x.shape[1:])
        return (x.movedim(dim, -1) @ self.matrix.t()).movedim(-1, dim)

    def _in_blocks(self, x: Tensor, dim: int) -> Tensor:
        x = x.movedim(dim, 0)
        if self.order is not None:
            x = x.index_select(0, self.order)
        *parts, rest = x.split([*self.sizes, self.untouched])
        mixed = [
            self.block(part, matrix, positions)
            for part, matrix, positions in zip(parts, self.matrices, self.positions, strict=True)
        ]
        x = torch.cat([*mixed, rest]) if self.untouched or len(mixed) > 1 else mixed[0]
        if self.back is not None:
            x = x.index_select(0, self.back)
        return x.movedim(0, dim)

    def block(self, x: Tensor, matrix: Tensor, positions: int) -> Tensor:
        """Channels [places, size, positions, ...] mixed by [groups x places, kept, size]."""
        stack, kept, size = matrix.shape
        places = stack // self.groups
        y = x.reshape(places, size, positions, self.groups, -1).permute(3, 0, 1, 2, 4)
        y = torch.bmm(matrix, y.reshape(stack, size, -1))
        y = y.view(self.groups, places, kept, positions, -1).permute(1, 2, 3, 0, 4)
        return y.reshape(places * kept * positions, *x.shape[1:])

    def extra_repr(self) -> str:
        return f"dim={self.dim}, matrices={[tuple(m.shape) for m in self.matrices]}"


def _with_rest(places: list[Tensor], width: int) -> Tensor:
    """These places, then all others."""
    chosen = torch.cat([p.reshape(-1) for p in places])
    rest = torch.ones(width, dtype=torch.bool)
    rest[chosen] = False
    return torch.cat([chosen, rest.nonzero().reshape(-1)])


def _unless_plain(order: Tensor) -> Tensor | None:
    return None if torch.equal(order, torch.arange(len(order))) else order


def _exact(x: Tensor) -> AbstractContextManager[Any]:
    """No autocast: entries of C near one would lose their updates in bfloat16.

    The layer casts Ŵ itself.
    """
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


class Factors(nn.Module):
    """C and D of one weight, multiplied in the order that costs least."""

    def __init__(self, shape: torch.Size, outs: list[Mix], reads: list[Mix]) -> None:
        super().__init__()
        self.C, self.D = nn.ModuleList(outs), nn.ModuleList(reads)
        self.order = cheapest(shape, [*outs, *reads])
        self.held: Tensor | None = None
        self.names: tuple[str, ...] = ()  # of the layer's parameters, in their order

    def forward(self, weight: Tensor) -> Tensor:
        if self.held is not None:
            return self.held
        # Ŵ is laid out like W: a convolution hands the layout of its weight on to what it puts out.
        last = weight.ndim == 4 and not weight.is_contiguous()
        mixes: Any = [*self.C, *self.D]
        sides = [(m, 3 if last and m.dim == 1 else m.dim) for m in (mixes[i] for i in self.order)]
        with _exact(weight):
            x = weight.permute(0, 2, 3, 1) if last else weight
            if all(mix.plain for mix, _ in sides) and rounded.allowed(x):
                x = rounded.mixed(x, [(mix.matrix, mix.kept, dim) for mix, dim in sides])
            else:
                for mix, dim in sides:
                    x = mix.along(x, dim)
            x = x.contiguous().permute(0, 3, 1, 2) if last else x.contiguous()
            # A single input, or a kernel of one pixel, leaves strides that pass for both layouts,
            # and with them oneDNN's gradient of the weight writes out of bounds: flat and back,
            # they are the plain ones.
            either = x.ndim == 4 and 1 in (x.shape[1], x.shape[2] * x.shape[3])
            return x.flatten().view(x.shape) if either else x


class BiasFactors(nn.Module):
    """b̂ = C b, with the C of the weight beside it."""

    def __init__(self, weight: Factors) -> None:
        super().__init__()
        self._weight = (weight,)  # in a tuple, so that C counts once among the parameters
        self.held: Tensor | None = None
        self.names: tuple[str, ...] = ()

    def forward(self, bias: Tensor) -> Tensor:
        if self.held is not None:
            return self.held
        with _exact(bias):
            mix: Any
            for mix in self._weight[0].C:
                bias = mix.of_bias(bias)
        return bias


def cheapest(shape: torch.Size, mixes: list[Mix]) -> list[int]:
    """The order of the products with the fewest multiply-accumulates.

    >>> def side(dim, kept):
    ...     places = torch.arange(64).view(1, 64, 1)
    ...     return Mix([Block(places, places[:, :kept], torch.arange(kept))], dim, 64)
    >>> cheapest(torch.Size([64, 64]), [side(0, 60), side(1, 2)])
    [1, 0]
    """

    def macs(order: Iterable[int]) -> int:
        total, sizes = 0, list(shape)
        for i in order:
            total += mixes[i].macs * prod(sizes) // sizes[mixes[i].dim]
            sizes[mixes[i].dim] = mixes[i].cut
        return total

    return list(min(permutations(range(len(mixes))), key=macs))
