"""Where each element of a pruned model's parameters was in the original."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from obc.errors import ObcError
from obc.plans.example import rebuild
from obc.running.modules import duplicate, named_tensors
from obc.surgery.record import applied
from obc.surgery.slicing import sliced
from obc.tracing.experts import moved
from obc.tracing.narrow import kept_positions, moves_of, narrow
from obc.tracing.tracer import trace


class Origins:
    """The positions that a pruned model kept of its original's parameters.

    Worked out from the plans that the pruned model remembers, and a trace of the original. `names`
    are those that the pruned model's parameters had in the original: where experts of a list went,
    others have moved up.
    """

    def __init__(self, pruned: nn.Module, original: nn.Module, example: Any = None) -> None:
        plans = applied(pruned)
        if not plans:
            raise ObcError(
                "the model remembers no cut; recalibrate what obc.apply or obc.load returned"
            )
        plans[0].check(original)
        self.shapes = {name: tensor.shape for name, tensor in named_tensors(original).items()}
        self.names = {name: name for name in self.shapes}
        self._kept: dict[str, dict[int, Tensor]] = {}  # by the names in the original
        model = original
        for number, plan in enumerate(plans):
            sites = trace(model, example if example is not None else _example(model, plan.example))
            for (name, dim), index in kept_positions(model, sites, plan.kept).items():
                dims = self._kept.setdefault(self.names[name], {})
                dims[dim] = dims[dim][index] if dim in dims else index
            where = moves_of(sites, plan.kept)
            self.names = {new: n for old, n in self.names.items() if (new := moved(old, where))}
            if number + 1 < len(plans):
                model = duplicate(model) if model is original else model
                narrow(model, sites, plan.kept, sliced)
        self._check(pruned)

    def _check(self, pruned: nn.Module) -> None:
        tensors = named_tensors(pruned)
        for name in self.names:
            if name not in tensors:
                raise ObcError(
                    f"the pruned model has no '{name}'; recalibrate it before it gets C and D "
                    "(obc.apply(..., equivalent=True, init='recalibrated'))"
                )
            if tensors[name].shape != self.ids(name).shape:
                raise ObcError(
                    f"'{name}' is {list(tensors[name].shape)} in the pruned model; by its plans "
                    f"it should be {list(self.ids(name).shape)}"
                )

    def ids(self, name: str) -> Tensor:
        """For each element of the pruned parameter the number of its element in the original.

        Both are counted in row-major order.
        """
        shape, kept = self.shapes[self.names[name]], self._kept.get(self.names[name], {})
        ids = torch.zeros((), dtype=torch.int64)
        for dim, size in enumerate(shape):
            index = kept.get(dim, torch.arange(size))
            ids = ids.unsqueeze(-1) * size + index
        return ids


def _example(model: nn.Module, description: Any) -> Any:
    if description is None:
        raise ObcError("the plan keeps no example; pass one as recalibrate(..., example=...)")
    first = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    return rebuild(description, first.device, first.dtype)
