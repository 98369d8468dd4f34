"""What a model costs: multiply-accumulates and parameters, per layer and in all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from obc.errors import ObcError
from obc.running.forward import forward
from obc.running.modules import ModuleStack, walk
from obc.running.offload import at_hand
from obc.running.snapshot import unchanged
from obc.tracing.arguments import bind
from obc.tracing.rules.products import Operands, total
from obc.tracing.rules.registry import find


@dataclass(frozen=True)
class LayerCost:
    """One layer's own share, without the layers inside it."""

    macs: int
    params: int


@dataclass(frozen=True)
class Cost:
    """Multiply-accumulates for one run of the example, and parameters; `layers` by name."""

    macs: int
    params: int
    layers: dict[str, LayerCost]

    def __str__(self) -> str:
        return f"{self.macs / 1e9:.3f} G MACs, {self.params / 1e6:.3f} M parameters"


@at_hand
def cost(model: nn.Module, example: Any) -> Cost:
    """Count what one run costs; the products inside attention are included.

    >>> cost(nn.Linear(10, 5), __import__("torch").zeros(2, 10)).macs
    100
    """
    with unchanged(model):
        counter = _Counter(model)
        try:
            with counter:
                forward(model, example)
        except Exception as error:
            raise ObcError(f"the model rejects the example: {error}") from error
    params_of = {name: 0 for name, _ in model.named_modules()}
    for name, p in model.named_parameters():  # a shared parameter counts where it is first
        params_of[name.rpartition(".")[0]] += p.numel()
    layers = {
        name: LayerCost(counter.macs.get(name, 0), params_of[name])
        for name in params_of
        if params_of[name] or name in counter.macs
    }
    params = sum(p.numel() for p in model.parameters())
    return Cost(sum(counter.macs.values()), params, layers)


class _Counter(TorchDispatchMode):
    """Adds up what torch's own formulas say of each operator, by the module that called it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.macs: dict[str, int] = {}
        self._stack = ModuleStack(walk(model))

    def __enter__(self) -> Any:
        self._stack.start()
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._stack.stop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        macs = operator_macs(func, args, kwargs, out)
        if macs:
            name = self._stack.path
            self.macs[name] = self.macs.get(name, 0) + macs
        return out


def operator_macs(func: Any, args: Any, kwargs: Any, out: Any) -> int:
    """The multiply-accumulates of one call, as its rule or else torch's formula says."""
    declared = find(func).macs
    if declared is not None:
        return total(declared(Operands(bind(func, args, kwargs), out)))
    formula = flop_registry.get(func.overloadpacket)
    return int(formula(*args, **kwargs, out_val=out)) // 2 if formula is not None else 0
