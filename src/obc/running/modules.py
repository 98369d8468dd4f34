"""The modules of a model: which is running, and what they hold, without touching any."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as registry
from torch.utils._pytree import tree_map

from obc.errors import ObcError
from obc.running.mapping import is_mapped, kept_as

Left = Callable[[str, int, Any, Any], None]


def check_model(model: object) -> list[tuple[str, nn.Module]]:
    """Refuse what cannot be cut and put back, before anything is touched; returns its modules."""
    modules = walk(checked_module(model))
    for name, module in modules:
        where = f"'{name}'" if name else "the model"
        if isinstance(module, torch.jit.ScriptModule):
            raise ObcError(
                f"{where} is compiled by TorchScript, which cannot be pruned; give the nn.Module "
                "it was made from"
            )
        if isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            raise ObcError(
                f"{where} is wrapped in {type(module).__name__}; give what is inside: model.module"
            )
        if isinstance(module, nn.modules.lazy.LazyModuleMixin):
            raise ObcError(f"{where} is lazy and has no weights yet; run the model once first")
        hook = vars(module).get("_hf_hook")
        if any(getattr(h, "offload", False) for h in getattr(hook, "hooks", [hook])):
            raise ObcError(
                f"{where} is offloaded by accelerate, so its weights are not at hand; load the "
                "model without offloading, in bfloat16 if memory is short"
            )
    return modules


def checked_module(model: object) -> nn.Module:
    """The model, if it is one at all."""
    if isinstance(model, nn.Module):
        return model
    raise ObcError(f"a model is a torch.nn.Module, not a {type(model).__name__}: {_advice(model)}")


def _advice(value: object) -> str:
    if isinstance(value, type) and issubclass(value, nn.Module):
        return f"make one, {value.__name__}(...)"
    if isinstance(value, Mapping):
        return "build the model, and load_state_dict into it"
    return "build the model first"


def walk(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """What `named_modules` yields, in its order, without a generator for each level of nesting.

    >>> net = nn.Sequential(nn.Sequential(nn.ReLU()), nn.ReLU())
    >>> [path for path, _ in walk(net)]
    ['', '0', '0.0', '1']
    """
    found: list[tuple[str, nn.Module]] = []
    seen: set[int] = set()
    waiting = [("", model)]
    while waiting:
        path, module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        found.append((path, module))
        if module._modules:
            prefix = f"{path}." if path else ""
            children = [
                (f"{prefix}{key}", m) for key, m in module._modules.items() if m is not None
            ]
            waiting += reversed(children)
    return found


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer by its first name, in one walk over the modules."""
    return tensors_of(walk(model))


def tensors_of(modules: list[tuple[str, nn.Module]]) -> dict[str, Tensor]:
    """The same of modules that were walked over already."""
    named: dict[int, tuple[str, Tensor]] = {}
    for path, module in modules:
        for store in (module._parameters, module._buffers):
            for key, tensor in store.items():
                if tensor is not None and id(tensor) not in named:
                    named[id(tensor)] = (f"{path}.{key}" if path else key, tensor)
    return dict(named.values())


def blocks_of(model: nn.Module) -> str:
    """The name of the largest list of layers: the blocks that a deep model repeats.

    >>> blocks_of(nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(2, 2)])}))
    'layers'
    """
    lists: list[tuple[int, str]] = [
        (sum(p.numel() for p in module.parameters()), name)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and name
    ]
    if not lists:
        raise ObcError("blocks: the model has no list of blocks, an nn.ModuleList")
    return max(lists)[1]


def duplicate(model: nn.Module, shared: Iterable[Tensor] = ()) -> nn.Module:
    """A deep copy, also of a model that keeps tensors made from its parameters; some are shared.

    `nn.utils.weight_norm` and `nn.utils.prune` leave such a tensor in the place of the weight, and
    torch does not copy what has a history. Each run makes it anew, so its values are enough.

    >>> net = nn.utils.weight_norm(nn.Linear(4, 2))
    >>> duplicate(net)(torch.ones(1, 4)).shape
    torch.Size([1, 2])
    """
    held = (value for module in model.modules() for value in vars(module).values())
    made = (t for t in held if isinstance(t, Tensor) and not t.is_leaf)
    memo = {id(t): t.detach().clone() for t in made} | {id(t): t for t in shared}
    for p in model.parameters():
        if id(p) not in memo and is_mapped(p):  # a copy in memory may be more than there is
            memo[id(p)] = type(p)(kept_as(p, p), p.requires_grad)
            memo[id(p)].__dict__.update(p.__dict__)
    return copy.deepcopy(model, memo)


def in_double(model: nn.Module, example: Any) -> tuple[nn.Module, Any]:
    """A copy of a model in double precision, which tells rounding from a fault, and its example.

    >>> net, x = in_double(nn.Linear(4, 2), torch.ones(1, 4))
    >>> net(x).dtype
    torch.float64
    """

    def doubled(value: Any) -> Any:
        floats = isinstance(value, Tensor) and value.is_floating_point()
        return value.double() if floats else value

    return duplicate(model).double(), tree_map(doubled, example)


class ModuleStack:
    """The modules that are running, innermost last, while started."""

    def __init__(self, modules: list[tuple[str, nn.Module]]) -> None:
        self._paths = {id(m): n for n, m in modules}
        self._hooks: list[Any] = []
        self.running: list[tuple[str, nn.Module, int]] = []
        self.path = ""  # of the innermost

    def start(self, now: Callable[[], int] = int, left: Left | None = None) -> None:
        """`now` tells the time; `left` hears of each call: path, begin, arguments, output."""
        self._now, self._left = now, left
        self._hooks = [
            registry.register_module_forward_pre_hook(self._enter),
            registry.register_module_forward_hook(self._leave, always_call=True),
        ]

    def stop(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self.running.clear()
        # Who listens may hold this stack: memory should not wait for Python to find such a circle.
        self.path, self._hooks, self._left = "", [], None
        del self._now

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        self.path = self._paths.get(id(module), "")
        self.running.append((self.path, module, self._now()))

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        path, _, begin = self.running.pop()
        self.path = self.running[-1][0] if self.running else ""
        if self._left is not None:
            self._left(path, begin, inputs, output)
