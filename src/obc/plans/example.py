"""An example as a plan keeps it: shapes, types and small integer values, nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from obc.errors import ObcError

_SMALL = 4096  # integers up to this many are kept as they are: token ids, masks, positions
_LARGE = 2**26  # numbers in all, so that no file can ask for more memory than there is
_DIMS = 16


def describe(example: Any) -> Any:
    """The example as JSON.

    >>> describe((torch.zeros(1, 3, 8, 8), True))
    {'tuple': [{'tensor': [1, 3, 8, 8], 'dtype': 'float32'}, {'value': True}]}
    """
    if isinstance(example, Tensor):
        return _describe_tensor(example)
    if isinstance(example, Mapping):
        return {"dict": {str(k): describe(v) for k, v in example.items()}}
    if isinstance(example, (tuple, list)):
        return {"tuple" if isinstance(example, tuple) else "list": [describe(v) for v in example]}
    if example is None or isinstance(example, (bool, int, float, str)):
        return {"value": example}
    raise ObcError(f"the example holds a {type(example).__name__}, which a plan cannot keep")


def _describe_tensor(x: Tensor) -> dict[str, Any]:
    description: dict[str, Any] = {
        "tensor": list(x.shape),
        "dtype": str(x.dtype).removeprefix("torch."),
    }
    if not x.is_floating_point() and not x.is_complex() and not x.is_meta and x.numel():
        if x.numel() <= _SMALL:
            description["values"] = x.reshape(-1).tolist()
        else:
            description["low"], description["high"] = int(x.min()), int(x.max())
    return description


_DTYPES = {
    *("float32", "float64", "float16", "bfloat16", "complex64", "complex128", "bool"),
    *("uint8", "int8", "int16", "int32", "int64"),
}


def check_description(spec: Any) -> None:
    """Refuse anything that `describe` would not have written, and what is far too large.

    >>> check_description({"tensor": [2**20, 2**20], "dtype": "float32"})
    Traceback (most recent call last):
    ValueError: an example of 1099511627776 numbers; a plan keeps at most 67108864
    """
    count = _check_node(spec)
    if count > _LARGE:
        raise ValueError(f"an example of {count} numbers; a plan keeps at most {_LARGE}")


def _check_node(node: Any) -> int:
    """How many numbers a well-formed description stands for."""
    if not isinstance(node, dict) or not node:
        raise ValueError("an example is described by a dictionary")
    (kind, value), *_ = node.items()
    if kind == "tensor":
        return _check_tensor(node)
    if len(node) != 1 or kind not in ("dict", "tuple", "list", "value"):
        raise ValueError(f"an example holds no '{kind}'")
    if kind == "value":
        if not (value is None or isinstance(value, (bool, int, float, str))):
            raise ValueError("a plain value of an example is a number, a text or nothing")
        return 1
    if not isinstance(value, dict if kind == "dict" else list):
        raise ValueError(f"'{kind}' of an example has another form")
    parts = value.values() if isinstance(value, dict) else value
    return sum(map(_check_node, parts))


def _check_tensor(node: dict[str, Any]) -> int:
    shape, values = node["tensor"], node.get("values")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError("a tensor's shape is a list of whole numbers")
    if len(shape) > _DIMS or max(shape, default=0) > _LARGE:
        raise ValueError(f"a tensor has at most {_DIMS} dimensions, each of at most {_LARGE}")
    extra = node.keys() - {"tensor", "dtype", "values", "low", "high"}
    dtype = node.get("dtype")
    if not isinstance(dtype, str) or dtype not in _DTYPES or extra:
        raise ValueError("a tensor is described by its shape, dtype and values")
    if values is not None:
        numbers = isinstance(values, list) and all(isinstance(v, int) for v in values)
        if not numbers or len(values) != math.prod(shape):
            raise ValueError("a tensor has as many values as its shape says")
    low, high = node.get("low", 0), node.get("high", 0)
    if not (isinstance(low, int) and isinstance(high, int) and low <= high):
        raise ValueError("a tensor's range is given by two whole numbers, the lower one first")
    _check_range(dtype, [low, high, *(values or ())])
    return math.prod(max(n, 1) for n in shape)  # torch multiplies the others beside a zero, too


def _check_range(dtype: str, numbers: list[int]) -> None:
    kind = getattr(torch, dtype)
    if kind.is_floating_point or kind.is_complex:
        return
    ends = (0, 1) if kind is torch.bool else (torch.iinfo(kind).min, torch.iinfo(kind).max)
    if min(numbers) < ends[0] or max(numbers) > ends[1]:
        raise ValueError(f"a tensor's values do not fit its dtype, {dtype}")


def rebuild(spec: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """An example of that description; its floating-point tensors take the model's dtype."""
    generator = torch.Generator().manual_seed(0)

    def make(node: Any) -> Any:
        (kind, value), *_ = node.items()
        if kind == "dict":
            return {k: make(v) for k, v in value.items()}
        if kind in ("tuple", "list"):
            return (tuple if kind == "tuple" else list)(make(v) for v in value)
        return value if kind == "value" else _make_tensor(node, generator, device, dtype)

    return make(spec)


def _make_tensor(
    node: dict[str, Any], generator: torch.Generator, device: torch.device, dtype: torch.dtype
) -> Tensor:
    shape, kind = node["tensor"], getattr(torch, node["dtype"])
    if kind.is_floating_point or kind.is_complex:
        x = torch.randn(shape, generator=generator)
        return x.to(device, dtype if kind.is_floating_point else kind)
    if "values" in node:
        return torch.tensor(node["values"], dtype=kind).reshape(shape).to(device)
    last = torch.iinfo(torch.int64).max - 1  # what comes after it must be a number, too
    low, high = min(node.get("low", 0), last), min(node.get("high", 0), last)
    return torch.randint(low, high + 1, shape, generator=generator).to(device, kind)
