"""Sparse learning before pruning: DepGraph's group regulariser, as a change of gradients."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from obc.errors import ObcError
from obc.tasks.task import Task
from obc.tracing.members import Member
from obc.tracing.sites import Site, Sites
from obc.tracing.tracer import trace
from obc.tuning.recipe import Recipe
from obc.tuning.trainer import Tuned, finetune


class GroupSparsity:
    """Call it with the model between `backward` and the optimizer's step, in any loop.

    The gradient of each group gains λ · γ_g · w, with γ_g = 2^(4 · (max − ‖g‖) / (max − min)) over
    the groups of its site: the smaller a group is beside the others, the harder it is pressed.

    >>> import obc
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> press = GroupSparsity(obc.trace(net, torch.zeros(1, 4)), strength=1e-4)
    >>> net(torch.randn(3, 4)).sum().backward()
    >>> press(net)
    """

    def __init__(self, sites: Sites, strength: float) -> None:
        if not strength > 0:
            raise ObcError(f"strength must be more than 0, not {strength}")
        self.sites, self.strength = sites, strength

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> None:
        weights = dict(model.named_parameters())
        for site in self.sites:
            names = (name for m in site.members for name in m.names)
            missing = next((name for name in names if name not in weights), None)
            if missing is not None:
                raise ObcError(f"the sites are another model's: no '{missing}' here")
            pressure = self.strength * pressures(norms(site, weights))
            for member in site.members:
                for weight, factor in _pressed(pressure, member, weights):
                    if weight.grad is not None:
                        weight.grad.addcmul_(weight, factor)


def sparsify(
    model: nn.Module,
    task: Task,
    recipe: Recipe,
    out: str | os.PathLike[str] | None = None,
    resume: bool = True,
) -> Tuned:
    """The recipe's stage of sparse learning, in place, as a run of its own in `out`.

    What the recipe leaves unpruned is not pressed. No average of weights is kept, which would lag
    behind those that shrink, and no teacher is asked.
    """
    stage = recipe.sparse
    if stage is None:
        raise ObcError("the recipe has no [sparse] table")
    sites = trace(model, task.example(), ignore=recipe.prune.ignore if recipe.prune else ())
    learning = recipe.changed(
        epochs=stage.epochs,
        lr=stage.lr,
        schedule="multistep",
        milestones=stage.milestones,
        warmup_epochs=0,
        distill=0.0,
        ema=None,
        prune=None,
        sparse=None,
    )
    press = GroupSparsity(sites, stage.strength)
    return finetune(model, task, learning, out=out, resume=resume, callback=press)


def norms(site: Site, weights: dict[str, Any]) -> Tensor:
    """‖g‖ of each group of a site: over all it owns, in every layer."""
    total: Any = 0
    for m in site.members:
        weight = m.of(weights)
        rest = [d for d in range(weight.ndim) if d != m.dim]
        squares = weight.square().sum(rest) if rest else weight.square()
        total = total + squares[m.index.to(weight.device)].sum(1)
    norm: Tensor = total.sqrt()
    return norm


def pressures(sizes: Tensor) -> Tensor:
    """γ_g: from 1 for the largest group to 16 for the smallest; 1 where all are alike.

    >>> pressures(torch.tensor([1.0, 2.0, 3.0]))
    tensor([16.,  4.,  1.])
    """
    low, high = sizes.aminmax()
    if low == high:
        return torch.ones_like(sizes)
    return torch.exp2(4 * (high - sizes) / (high - low))


def _pressed(
    pressure: Tensor, member: Member, weights: dict[str, Any]
) -> Iterator[tuple[Any, Tensor]]:
    """The weights of a member, each with the pressure on its parts."""
    for name, dim in member.places:
        yield weights[name], _along(pressure, member.index, weights[name], dim)
    if not member.places:  # whole experts
        for name, factor in zip(member.names, pressure, strict=True):
            yield weights[name], factor.to(weights[name])


def _along(pressure: Tensor, index: Tensor, weight: Tensor, dim: int) -> Tensor:
    """Each place of a dimension with its group's pressure; nothing elsewhere."""
    places = torch.zeros(weight.shape[dim], dtype=weight.dtype, device=weight.device)
    index = index.to(weight.device)
    places[index] = pressure.to(weight.dtype)[:, None].expand_as(index)
    return places.view([-1 if d == dim else 1 for d in range(weight.ndim)])
