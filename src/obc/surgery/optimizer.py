"""Carry an optimizer over a cut: same groups, same steps, buffers sliced like their parameters."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from obc.errors import ObcError
from obc.tracing.narrow import take

Positions = Mapping[tuple[str, int], Tensor]


def check_state(model: nn.Module, optimizer: torch.optim.Optimizer, kept: Positions) -> None:
    """Refuse, before anything is cut, state shaped neither like its parameter nor a scalar."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ObcError(f"optimizer is a torch.optim.Optimizer, not {optimizer!r}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ObcError("the state of LBFGS cannot be sliced; start a new optimizer")
    names = {id(p): n for n, p in model.named_parameters()}
    cut_names = {name for name, _ in kept}
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not held & set(names):
        raise ObcError("the optimizer holds no parameter of this model")
    for parameter, state in optimizer.state.items():
        name = names.get(id(parameter))
        if name not in cut_names:
            continue
        for key, value in state.items():
            if isinstance(value, Tensor) and value.ndim and value.shape != parameter.shape:
                raise ObcError(
                    f"optimizer state '{key}' of '{name}' is {list(value.shape)}, its parameter "
                    f"{list(parameter.shape)}: it cannot be sliced; start a new optimizer"
                )


def carry_over(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    kept: Positions,
    new: Mapping[Tensor, Tensor],
    before: Mapping[Tensor, str],
) -> None:
    """Put the new parameters in the place of the old ones, with their sliced state.

    `before` has the names that parameters had before the cut.
    """
    there = {id(p) for p in model.parameters()}
    gone = [p for p in before if id(new.get(p, p)) not in there]  # of experts that went
    for group in optimizer.param_groups:
        group["params"] = [new.get(p, p) for p in group["params"] if p not in set(gone)]
    for parameter in gone:
        optimizer.state.pop(parameter, None)
    for old, fresh in new.items():
        if old not in optimizer.state:
            continue
        dims = {d: index for (name, d), index in kept.items() if name == before[old]}
        optimizer.state[fresh] = {
            key: take(value, dims) if isinstance(value, Tensor) and value.ndim else value
            for key, value in optimizer.state.pop(old).items()
        }
