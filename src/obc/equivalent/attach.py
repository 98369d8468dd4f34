"""Put factors on the full weights of a model that was cut, as torch's own parametrizations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from obc.equivalent.factors import BiasFactors, Factors
from obc.equivalent.layout import Layout
from obc.errors import ObcError
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


def check_state(model: nn.Module, names: Iterable[str]) -> None:
    """Refuse the names of a state dict that has C and D where the model has none, or the reverse.

    >>> check_state(nn.Linear(2, 2), ["parametrizations.weight.0.C.0.matrices.0"])
    Traceback (most recent call last):
    obc.errors.ObcError: the state holds C and D of an equivalent pruning, the model does not; make
    the model by obc.apply(model, plan, equivalent=True), or merge before saving...
    """
    factored = any(".matrices." in name for name in names)
    if factored and not is_equivalent(model):
        raise ObcError(
            "the state holds C and D of an equivalent pruning, the model does not; make the model "
            "by obc.apply(model, plan, equivalent=True), or merge before saving"
        )
    if is_equivalent(model) and not factored:
        raise ObcError(
            "the model holds C and D of an equivalent pruning, the state does not; "
            "obc.merge(model) before loading it"
        )


def is_equivalent(model: nn.Module) -> bool:
    """Whether a model holds factors that `obc.merge` has not folded yet."""
    return any(isinstance(m, (Factors, BiasFactors)) for m in model.modules())
