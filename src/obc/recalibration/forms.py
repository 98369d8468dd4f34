"""The linear maps that operators compute with a weight, as rows of a regression.

Each form brings one operator to y[g] = W[g] u[g] + b[g], for groups g: the weight as a matrix
[groups, outputs, inputs], and at any positions of the output what was read there, u, and what was
put out. A convolution reads patches (im2col), channels last; a scaling, as in a norm layer, has a
group of one input and one output for each channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor


@dataclass(frozen=True)
class Form:
    """One operator's input, and how its weight and output are laid out.

    `groups`, `outputs` and `inputs` are the sizes of the weight as a matrix; `places` is the shape
    of the output without its channels.
    """

    input: Tensor
    groups: int
    outputs: int
    inputs: int
    places: tuple[int, ...]

    @property
    def positions(self) -> int:
        """How many rows a regression could have."""
        return prod(self.places)

    def matrix(self, weight: Tensor) -> Tensor:
        """The operator's weight as [groups, outputs, inputs]."""
        raise NotImplementedError

    def weight(self, matrix: Tensor) -> Tensor:
        """The reverse of `matrix`."""
        raise NotImplementedError

    def rows(self, index: Tensor) -> Tensor:
        """What the operator reads for these positions of its output, [groups, rows, inputs]."""
        raise NotImplementedError

    def last(self, output: Tensor) -> Tensor:
        """An output with its channels, all groups of them, in the last dimension."""
        raise NotImplementedError

    def taken(self, output: Tensor, index: Tensor) -> Tensor:
        """An output at these positions, [rows, channels]."""
        return self.last(output)[torch.unravel_index(index, self.places)]

    def fits(self, tensor: Tensor) -> bool:
        """Whether a tensor has the shape of this output, as far as `taken` needs it."""
        channels = self.groups * self.outputs
        return tensor.ndim == len(self.places) + 1 and tuple(self.last(tensor).shape) == (
            *self.places,
            channels,
        )


@dataclass(frozen=True)
class Product(Form):
    """u @ Wᵀ for matrices, or for stacks of them; the input is [groups, rows, inputs].

    `turned` tells an operator that computes W @ uᵀ.
    """

    turned: bool
    stacked: bool

    @classmethod
    def of(cls, input: Tensor, weight: Tensor, turned: bool) -> Product:
        """From the two operands of mm or bmm."""
        stacked = weight.ndim == 3 and weight.stride(0) != 0
        x, w = (input.mT, weight.mT) if turned else (input, weight)
        x = x if stacked else x.reshape(1, -1, x.shape[-1])
        groups = len(w) if stacked else 1
        return cls(x, groups, w.shape[-1], w.shape[-2], (x.shape[1],), turned, stacked)

    def matrix(self, weight: Tensor) -> Tensor:
        w = weight if weight.ndim == 2 or self.stacked else weight[0]
        w = w if self.turned else w.mT
        return w if w.ndim == 3 else w.unsqueeze(0)

    def weight(self, matrix: Tensor) -> Tensor:
        w = matrix if self.turned else matrix.mT
        return w if self.stacked else w[0]

    def rows(self, index: Tensor) -> Tensor:
        return self.input[:, index]

    def last(self, output: Tensor) -> Tensor:
        y = output.mT if self.turned else output
        return y.transpose(0, 1).flatten(1) if self.stacked else y.reshape(-1, y.shape[-1])

    def fits(self, tensor: Tensor) -> bool:
        plain = not self.stacked and not self.turned and tensor.ndim > 1
        return plain and tuple(self.last(tensor).shape) == (*self.places, self.outputs)


@dataclass(frozen=True)
class Convolution(Form):
    """A convolution of any dimension, strided, dilated, grouped or transposed."""

    kernel: tuple[int, ...]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool

    @classmethod
    def of(
        cls,
        input: Tensor,
        weight: Tensor,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
    ) -> Convolution:
        """From what `aten.convolution` is told."""
        kernel = tuple(weight.shape[2:])
        inputs, outputs = weight.shape[1], weight.shape[0] // groups
        if transposed:
            inputs, outputs = outputs, inputs
        places = [len(input)]
        for d, size in enumerate(input.shape[2:]):
            reach = dilation[d] * (kernel[d] - 1) + 1
            if transposed:
                places.append((size - 1) * stride[d] - 2 * padding[d] + reach + output_padding[d])
            else:
                places.append((size + 2 * padding[d] - reach) // stride[d] + 1)
        return cls(
            input, groups, outputs, inputs * prod(kernel), tuple(places),
            kernel, stride, padding, dilation, transposed,
        )  # fmt: skip

    def matrix(self, weight: Tensor) -> Tensor:
        w = weight.reshape(self.groups, -1, *weight.shape[1:])
        w = (w.transpose(1, 2) if self.transposed else w).flatten(3)
        return w.transpose(2, 3).flatten(2)

    def weight(self, matrix: Tensor) -> Tensor:
        w = matrix.reshape(self.groups, self.outputs, prod(self.kernel), -1).transpose(2, 3)
        w = w.reshape(*w.shape[:3], *self.kernel)
        return (w.transpose(1, 2) if self.transposed else w).flatten(0, 1)

    def rows(self, index: Tensor) -> Tensor:
        batch, *at = torch.unravel_index(index, self.places)
        dims = len(self.kernel)
        where = [batch.view([-1] + [1] * dims)]
        inside = torch.ones((), dtype=torch.bool, device=index.device)
        for d, position in enumerate(at):
            i, valid = self._read(d, position)
            shape = [len(index)] + [1] * dims
            shape[d + 1] = self.kernel[d]
            where.append(i.view(shape))
            inside = inside & valid.view(shape)
        number = torch.zeros_like(where[0])
        for i, size in zip(where, (len(self.input), *self.input.shape[2:]), strict=True):
            number = number * size + i
        pixels = self._pixels
        u = pixels.index_select(0, number.where(inside, len(pixels) - 1).flatten())
        u = u.view(len(index), prod(self.kernel), self.groups, -1)
        return u.permute(2, 0, 1, 3).flatten(2)

    @cached_property
    def _pixels(self) -> Tensor:
        """Pixels in a row, channels side by side, which are read far faster, and one of zeros."""
        turned = self.input.movedim(1, -1)
        pixels = turned.new_zeros(turned.shape[:-1].numel() + 1, turned.shape[-1])
        pixels[:-1].view(turned.shape).copy_(turned)
        return pixels

    def _read(self, d: int, position: Tensor) -> tuple[Tensor, Tensor]:
        """Along one dimension: what each element of the kernel reads, and whether it is inside."""
        offset = torch.arange(self.kernel[d], device=position.device) * self.dilation[d]
        if self.transposed:
            reached = position.unsqueeze(1) + self.padding[d] - offset
            at, exact = reached.div(self.stride[d], rounding_mode="floor"), self.stride[d]
            valid = reached % exact == 0
        else:
            at = position.unsqueeze(1) * self.stride[d] - self.padding[d] + offset
            valid = torch.ones_like(at, dtype=torch.bool)
        size = self.input.shape[d + 2]
        return at.clamp(0, size - 1), valid & (at >= 0) & (at < size)

    def last(self, output: Tensor) -> Tensor:
        return output.movedim(1, -1)


@dataclass(frozen=True)
class Scaling(Form):
    """y = w x, channel by channel; the channels are dimension `axis` of input and output."""

    axis: int

    @classmethod
    def of(cls, input: Tensor, axis: int) -> Scaling:
        """From what is scaled."""
        axis %= input.ndim
        places = (*input.shape[:axis], *input.shape[axis + 1 :])
        return cls(input, input.shape[axis], 1, 1, places, axis)

    def matrix(self, weight: Tensor) -> Tensor:
        return weight.reshape(-1, 1, 1)

    def weight(self, matrix: Tensor) -> Tensor:
        return matrix.reshape(-1)

    def rows(self, index: Tensor) -> Tensor:
        return self.taken(self.input, index).t().unsqueeze(-1)

    def last(self, output: Tensor) -> Tensor:
        return output.movedim(self.axis, -1)
