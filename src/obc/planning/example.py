"""An example as a plan keeps it: shapes, types and small integer values, nothing else."""

from __future__ import annotations

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
