"""What the layers that read a site read: covariances by channel, from forward passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from obc.criteria.structure import Part
from obc.criteria.takeover import Place, Reader
from obc.running.processes import Group
from obc.tracing.layers import plain_axes
from obc.tracing.wiring import Wiring

WIDEST = 4096  # inputs of a layer, whose covariance is a matrix of that many squared


class Reading:
    """Sums over all positions that layers read at: the count, Σx and Σxxᵀ, in float64.

    Products of one batch are taken about its mean, so that float32 is enough for them.
    """

    def __init__(
        self, model: nn.Module, parts: Mapping[str, Sequence[Part]], wiring: Wiring
    ) -> None:
        self._model = model
        self._parts = {
            site: [p for p in of_site if readable(p, model, wiring)]
            for site, of_site in parts.items()
        }
        self._sums: dict[str, list[Tensor]] = {}
        for part in (p for of_site in self._parts.values() for p in of_site):
            weight, dim = self._weight(part), part.members[0].dim
            width = weight.shape[dim]
            self._sums[part.layer] = [
                torch.zeros(shape, dtype=torch.float64, device=weight.device)
                for shape in ((), (width,), (width, width))
            ]

    def _weight(self, part: Part) -> Tensor:
        return self._model.get_parameter(part.members[0].name).detach()

    def take(self, run: Callable[[], Any]) -> None:
        """Take in what the layers read in one run of the model."""
        hooks = [
            self._model.get_submodule(layer).register_forward_pre_hook(self._reader(layer))
            for layer in self._sums
        ]
        try:
            with torch.no_grad():
                run()
        finally:
            for hook in hooks:
                hook.remove()

    def _reader(self, layer: str) -> Any:
        def hook(module: nn.Module, inputs: Any) -> None:
            axes = plain_axes(module)
            assert axes is not None
            x = inputs[0].movedim(axes.data, -1).flatten(0, -2)
            x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
            mean = x.mean(0)
            v, centre = x - mean, mean.double()
            count, first, second = self._sums[layer]
            count += len(x)
            first += v.sum(0, dtype=torch.float64) + len(x) * centre
            second += (v.T @ v).double() + len(x) * torch.outer(centre, centre)

        return hook

    def places(self, group: Group) -> dict[str, list[Place]]:
        """Of each site the layers that read it, with covariances over all processes."""
        readers: dict[str, Reader] = {}
        for part in (p for of_site in self._parts.values() for p in of_site):
            if part.layer not in readers:
                count, first, second = (group.summed(value) for value in self._sums[part.layer])
                mean = first / count.clamp(min=1)
                weight = self._weight(part).movedim(part.members[0].dim, 0).flatten(1)
                covariance = second / count.clamp(min=1) - torch.outer(mean, mean)
                readers[part.layer] = Reader(weight, covariance)
        return {
            site: [(readers[p.layer], p.members[0].index.to(self._weight(p).device)) for p in parts]
            for site, parts in self._parts.items()
            if parts
        }


def readable(part: Part, model: nn.Module, wiring: Wiring) -> bool:
    """Whether a part is the input slice of a plain layer that mixes all of its inputs."""
    module: Any = model.get_submodule(part.layer)
    axes = plain_axes(module)
    return (
        part.role == "in"
        and [m.param for m in part.members] == ["weight"]
        and axes is not None
        and part.members[0].dim == axes.reads
        and not isinstance(module, nn.Embedding)
        and getattr(module, "groups", 1) == 1
        and not hasattr(module, "parametrizations")
        and wiring.users.get(part.members[0].name) == frozenset({part.layer})
        and module.weight.shape[axes.reads] <= WIDEST
    )
