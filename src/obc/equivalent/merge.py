"""`obc.merge`: fold C and D into the weights; what is left is the plain pruned module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from obc.equivalent.attach import like
from obc.equivalent.factors import BiasFactors, Factors
from obc.errors import ObcError
from obc.running.modules import checked_module


def merge(model: nn.Module) -> nn.Module:
    """Fold the factors of an equivalent pruning in place, and return the model.

    Each layer gets the plain weight Ŵ = C W Dᵀ and bias b̂ = C b; a model without factors is left
    as it is.

    >>> import obc
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> plan = obc.Plan.from_kept(obc.trace(net, torch.zeros(1, 4)), {"0": [0, 2, 5]})
    >>> merge(obc.apply(net, plan, equivalent=True))
    Sequential(
      (0): Linear(in_features=4, out_features=3, bias=True)
      (1): ReLU()
      (2): Linear(in_features=3, out_features=2, bias=True)
    )
    """
    layers = []
    for name, module in checked_module(model).named_modules():
        if parametrize.is_parametrized(module) and _ours(module):
            _check(name, module)
            layers.append(module)
    with torch.no_grad():
        values = [{key: getattr(m, key) for key in _ours(m)} for m in layers]
    for module, tensors in zip(layers, values, strict=True):
        _plain(module, tensors)
    return model


def _ours(module: Any) -> list[str]:
    """The parameters of a module that have factors."""
    return [
        key
        for key, steps in module.parametrizations.items()
        if isinstance(steps[0], (Factors, BiasFactors))
    ]


def _check(name: str, module: Any) -> None:
    """Refuse a layer that somebody else has changed since."""
    if list(module.parametrizations) != _ours(module) or any(
        len(steps) > 1 for steps in module.parametrizations.values()
    ):
        raise ObcError(f"'{name}' has parametrizations beside C and D; remove them before merging")
    kind = type(module)
    if kind.__name__ != f"Parametrized{kind.__bases__[0].__name__}":
        raise ObcError(
            f"'{name}' has become a {kind.__name__}; load its full state into a model made by "
            "obc.apply(model, plan, equivalent=True), and merge that"
        )


def _plain(module: Any, values: dict[str, Tensor]) -> None:
    """Undo the parametrizations of one module: parameters in their old order, the old class."""
    names: tuple[str, ...] = ()
    for key, value in values.items():
        steps = module.parametrizations[key]
        names = names or steps[0].names
        module._parameters[key] = like(steps.original, value)
    # Torch's own removal would take the property from the class, which deep copies share.
    del module._modules["parametrizations"]
    module.__class__ = type(module).__bases__[0]
    order = [*names, *(k for k in module._parameters if k not in names)]
    module._parameters.update({k: module._parameters.pop(k) for k in order})
