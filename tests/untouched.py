"""Whether a model is bit for bit what it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def untouched(*models: nn.Module) -> Iterator[None]:
    """What happens inside leaves the models and the random state alone."""
    before, seed = [portrait(m) for m in models], torch.get_rng_state()
    yield
    for model, old in zip(models, before, strict=True):
        new = portrait(model)
        assert new.keys() == old.keys()
        for name in old:
            assert new[name] == old[name], f"{name} has changed"
    assert torch.equal(torch.get_rng_state(), seed), "the random state has changed"


def portrait(model: nn.Module) -> dict[str, Any]:
    """Everything that can be seen of a model, by name."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        found[f"{path} itself"] = (id(module), type(module), module.training)
        for key, value in vars(module).items():
            name = f"{path}.{key}"
            if key in ("_parameters", "_buffers"):
                found |= {f"{name}.{k}": tensor(t) for k, t in value.items()}
            elif isinstance(value, dict):  # hooks and children
                found[name] = [(k, id(v)) for k, v in value.items()]
            elif isinstance(value, Tensor):
                found[name] = tensor(value)
            else:
                found[name] = (id(value), repr(value))
    return found


def tensor(value: Tensor | None) -> Any:
    """A tensor's identity, kind, contents and gradient."""
    if value is None:
        return None
    bits = b"" if value.is_meta else value.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
    kind = (type(value), value.dtype, value.device, value.shape, value.requires_grad)
    hooks = list((value._backward_hooks or {}).items())
    return id(value), kind, bits, hooks, tensor(value.grad) if value.is_leaf else None
