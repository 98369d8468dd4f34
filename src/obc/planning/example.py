"""An example as a plan keeps it: shapes, types and small integer values, nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from obc.errors import ObcError

_SMALL = 4096  # integers up to this many are kept as they are: token ids, masks, positions


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
    found: dict[str, Any] = {"tensor": list(x.shape), "dtype": str(x.dtype).removeprefix("torch.")}
    if not x.is_floating_point() and not x.is_complex() and not x.is_meta and x.numel():
        if x.numel() <= _SMALL:
            found["values"] = x.reshape(-1).tolist()
        else:
            found["low"], found["high"] = int(x.min()), int(x.max())
    return found


_DTYPES = {
    *("float32", "float64", "float16", "bfloat16", "complex64", "complex128", "bool"),
    *("uint8", "int8", "int16", "int32", "int64"),
}


def check_description(node: Any) -> None:
    """Refuse anything that `describe` would not have written."""
    if not isinstance(node, dict) or not node:
        raise ValueError("an example is described by a dictionary")
    (kind, value), *_ = node.items()
    if kind == "tensor":
        _check_tensor(node)
    elif len(node) != 1 or kind not in ("dict", "tuple", "list", "value"):
        raise ValueError(f"an example holds no '{kind}'")
    elif kind == "value":
        if not (value is None or isinstance(value, (bool, int, float, str))):
            raise ValueError("a plain value of an example is a number, a text or nothing")
    elif not isinstance(value, dict if kind == "dict" else list):
        raise ValueError(f"'{kind}' of an example has another form")
    else:
        for part in value.values() if isinstance(value, dict) else value:
            check_description(part)


def _check_tensor(node: dict[str, Any]) -> None:
    shape, values = node["tensor"], node.get("values")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError("a tensor's shape is a list of whole numbers")
    extra = node.keys() - {"tensor", "dtype", "values", "low", "high"}
    if node.get("dtype") not in _DTYPES or extra:
        raise ValueError("a tensor is described by its shape, dtype and values")
    if values is not None:
        numbers = isinstance(values, list) and all(isinstance(v, int) for v in values)
        if not numbers or len(values) != math.prod(shape):
            raise ValueError("a tensor has as many values as its shape says")
    if not all(isinstance(node.get(key, 0), int) for key in ("low", "high")):
        raise ValueError("a tensor's range is given by whole numbers")


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
    low, high = node.get("low", 0), node.get("high", 0)
    return torch.randint(low, high + 1, shape, generator=generator).to(device, kind)
