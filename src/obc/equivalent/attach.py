"""Put factors on the full weights of a model that was cut, as torch's own parametrizations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from obc.equivalent.factors import BiasFactors, Factors
from obc.equivalent.layout import Layout
from obc.surgery.slicing import sliced


def attach(model: nn.Module, layout: Layout, full: Mapping[str, Tensor]) -> None:
    """Give the layers their full parameters back, and the factors that make them small."""
    for name, factors in layout.factors.items():
        _register(model, name, full[name], factors)
    for name, weight in layout.biases.items():
        _register(model, name, full[name], BiasFactors(layout.factors[weight]))


def _register(model: nn.Module, name: str, full: Tensor, factors: Factors | BiasFactors) -> None:
    path, _, key = name.rpartition(".")
    module: Any = model.get_submodule(path)
    if not parametrize.is_parametrized(module):
        factors.names = tuple(module._parameters)
    module._parameters[key] = full
    # Unsafe means: the tensor changes its shape.
    parametrize.register_parametrization(module, key, factors, unsafe=True)


def like(full: Tensor, value: Tensor) -> nn.Parameter:
    """A merged parameter with the type, the hooks and the attributes of the full one."""
    new = sliced(full, {})
    assert isinstance(new, nn.Parameter)
    new.data, new.grad = value.detach().clone(), None
    return new


def is_equivalent(model: nn.Module) -> bool:
    """Whether a model holds factors that `obc.merge` has not folded yet."""
    return any(isinstance(m, (Factors, BiasFactors)) for m in model.modules())
