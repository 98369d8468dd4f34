"""Which operators compute with a parameter as their weight, whatever module calls them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from obc.recalibration.forms import Convolution, Form, Product, Scaling
from obc.running.modules import named_tensors

aten = torch.ops.aten

Key = tuple[str, int, int]
"""One use of a weight: parameter, index of a slice of it or -1, how many uses came before."""

BATCH_NORMS = {
    *(aten.native_batch_norm, aten._native_batch_norm_legit_no_training),
    *(aten.cudnn_batch_norm, aten.miopen_batch_norm),
}


@dataclass(frozen=True)
class Operand:
    """A parameter, by name, and the view of it that an operator was given."""

    name: str
    parameter: Tensor
    view: Tensor

    def of(self, values: Tensor) -> Tensor:
        """The same view of other values, which are those of the elements in row-major order."""
        laid_out = torch.empty_strided(
            self.parameter.shape, self.parameter.stride(), dtype=values.dtype
        )
        laid_out.copy_(values.view(self.parameter.shape))
        return self._within(laid_out)

    def _within(self, tensor: Tensor) -> Tensor:
        offset = self.view.storage_offset() - self.parameter.storage_offset()
        return tensor.as_strided(
            self.view.shape, self.view.stride(), offset + tensor.storage_offset()
        )

    def inside(self, parameter: Tensor) -> tuple[Tensor, ...]:
        """What to write to: the view of the parameter itself, and autocast's copy, if it is one."""
        views = [self._within(parameter.detach())]
        if _memory(self.view) != _memory(parameter):
            views.append(self.view)
        return tuple(v[0] if v.ndim == 3 and v.stride(0) == 0 else v for v in views)


@dataclass(frozen=True)
class Use:
    """A parameter at work as a weight: the operands, and the form that they make.

    `index` is that of a slice of the parameter, as of one expert's weight among all, or -1.
    `rows` are those of the output that it makes, from and to, if others make the rest.
    """

    weight: Operand
    bias: Operand | None
    index: int
    form: Callable[[], Form]
    rows: tuple[int, int] | None = None

    def made(self, output: Tensor) -> Tensor:
        """Its part of the operator's output."""
        return output if self.rows is None else output[slice(*self.rows)]


class Parameters:
    """The parameters of a model, known by their memory, so that views of them are known, too.

    With `names`, those that have others in another model are called by these.
    """

    def __init__(self, model: nn.Module, names: Mapping[str, str] | None = None) -> None:
        self._at: dict[int, list[tuple[str, Tensor]]] = {}
        for name, tensor in called(named_tensors(model), names).items():
            if isinstance(tensor, nn.Parameter) and not tensor.is_meta:
                self._at.setdefault(_memory(tensor), []).append((name, tensor))

    def of(self, tensor: Any) -> Operand | None:
        """The parameter that a tensor is a view of."""
        if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
            return None
        for name, parameter in self._at.get(_memory(tensor), ()):
            start = tensor.storage_offset() - parameter.storage_offset()
            if 0 <= start < max(parameter.numel(), 1):
                return Operand(name, parameter, tensor)
        return None

    def copied(self, source: Tensor, copy: Tensor) -> None:
        """Autocast computes with copies: they count as the parameter they were made from."""
        known = self.of(source)
        if known is not None and copy.stride() == known.parameter.stride() and copy is not source:
            self._at[_memory(copy)] = [(known.name, copy)]

    def uses(self, func: Any, args: Sequence[Any]) -> list[Use]:
        """The uses of weights that an operator makes."""
        if func.overloadpacket is aten._grouped_mm:
            return _one_by_one(self, args)
        recognise = _OPERATORS.get(func.overloadpacket)
        use = recognise(self, args) if recognise is not None else None
        return [use] if use is not None else []


def called(tensors: Mapping[str, Tensor], names: Mapping[str, str] | None) -> Mapping[str, Tensor]:
    """Tensors by the names of another model, {name there: name here}; all it has."""
    if names is None:
        return tensors
    return {there: tensors[here] for there, here in names.items()}


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _found(
    parameters: Parameters, weight: Tensor, bias: Any, form: Callable[[], Form]
) -> Use | None:
    known, shift = parameters.of(weight), parameters.of(bias)
    if known is None:
        return None
    index, whole = -1, known.parameter
    if whole.ndim == 3 and weight.ndim == 2:
        index = (weight.storage_offset() - whole.storage_offset()) // whole.stride(0)
    return Use(known, shift if shift is not None and bias.ndim == 1 else None, index, form)


def _product(parameters: Parameters, args: Sequence[Any], bias: Any = None) -> Use | None:
    first, second = args[0], args[1]
    left, right = parameters.of(first), parameters.of(second)
    if (left is None) == (right is None):
        return None
    weight, other = (first, second) if right is None else (second, first)
    form = partial(Product.of, other, weight, right is None)
    return _found(parameters, weight, bias if right is not None else None, form)


def _sum_product(parameters: Parameters, args: Sequence[Any]) -> Use | None:
    return _product(parameters, args[1:], args[0])


def _one_by_one(parameters: Parameters, args: Sequence[Any]) -> list[Use]:
    """The weights of a stack, such as experts', each with the rows that are sorted to it."""
    input, weight, ends = args[:3]
    known = parameters.of(weight)
    if known is None or weight.ndim != 3 or input.ndim != 2 or ends is None:
        return []
    uses, begin = [], 0
    for matrix, end in zip(weight, ends.tolist(), strict=True):
        form = partial(Product.of, input[begin:end], matrix, False)
        use = _found(parameters, matrix, None, form)
        if use is not None:
            uses.append(replace(use, rows=(begin, end)))
        begin = end
    return uses


def _convolution(parameters: Parameters, args: Sequence[Any]) -> Use | None:
    input, weight, bias, *settings = args
    return _found(parameters, weight, bias, partial(Convolution.of, input, weight, *settings))


def _multiplied(parameters: Parameters, args: Sequence[Any]) -> Use | None:
    first, second = args[0], args[1]
    left, right = parameters.of(first), parameters.of(second)
    if (left is None) == (right is None):
        return None
    weight, other = (first, second) if right is None else (second, first)
    long = [d for d, size in enumerate(weight.shape) if size > 1]
    if not isinstance(other, Tensor) or len(long) != 1:
        return None
    axis = other.ndim - weight.ndim + long[0]
    if axis < 0 or other.shape[axis] != weight.numel() or not other.is_floating_point():
        return None
    return _found(parameters, weight, None, partial(Scaling.of, other, axis))


def _layer_norm(parameters: Parameters, args: Sequence[Any]) -> Use | None:
    input, shape, weight, bias, eps = args[:5]
    if weight is None or len(shape) != 1:
        return None
    form = partial(_normed, functional.layer_norm, input, -1, shape, None, None, eps)
    return _found(parameters, weight, bias, form)


def _rms_norm(parameters: Parameters, args: Sequence[Any]) -> Use | None:
    input, shape, weight, eps = args[:4]
    if weight is None or len(shape) != 1:
        return None
    form = partial(_normed, functional.rms_norm, input, -1, shape, None, eps)
    return _found(parameters, weight, None, form)


def _group_norm(parameters: Parameters, args: Sequence[Any]) -> Use | None:
    input, weight, bias, groups, eps = *args[:3], args[6], args[7]
    if weight is None:
        return None
    form = partial(_normed, functional.group_norm, input, 1, groups, None, None, eps)
    return _found(parameters, weight, bias, form)


def _normed(norm: Callable[..., Tensor], input: Tensor, axis: int, *settings: Any) -> Form:
    return Scaling.of(norm(input, *settings), axis)


def _batch_norm(parameters: Parameters, args: Sequence[Any]) -> Use | None:
    input, weight, bias = args[:3]
    if weight is None:
        return None
    return _found(parameters, weight, bias, partial(Scaling.of, input, 1))


_OPERATORS: dict[Any, Callable[[Parameters, Sequence[Any]], Use | None]] = {
    aten.mm: _product,
    aten.bmm: _product,
    aten.addmm: _sum_product,
    aten.baddbmm: _sum_product,
    aten.convolution: _convolution,
    aten.mul: _multiplied,
    aten.native_layer_norm: _layer_norm,
    aten._fused_rms_norm: _rms_norm,
    aten.native_group_norm: _group_norm,
    **dict.fromkeys(BATCH_NORMS, _batch_norm),
}
