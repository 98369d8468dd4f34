"""`obc.parameter_groups`: what an optimizer gets, with rates of their own for C and D."""

from __future__ import annotations

from typing import Any

from torch import nn

from obc.equivalent.factors import Mix
from obc.running.modules import checked_module


def parameter_groups(
    model: nn.Module,
    lr: float,
    weight_decay: float = 0.0,
    ep_lr: float | None = None,
    ep_weight_decay: float = 0.0,
    norm_weight_decay: float | None = None,
) -> list[dict[str, Any]]:
    """Groups for a torch optimizer: weights, biases and norms, C and D; empty ones are left out.

    Frozen parameters are left out.

    Args:
        model: plain, or with C and D of an equivalent pruning.
        lr: the rate of everything but C and D.
        weight_decay: of weights.
        ep_lr: the rate of C and D; None stands for `lr`.
        ep_weight_decay: of C and D.
        norm_weight_decay: of biases and norms; None decays them like weights, as the paper does.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    >>> [(g["name"], len(g["params"])) for g in parameter_groups(net, 0.01, 5e-4)]
    [('weights', 1), ('biases and norms', 3)]
    """
    factors = {
        id(p) for m in checked_module(model).modules() if isinstance(m, Mix) for p in m.parameters()
    }
    groups: dict[str, dict[str, Any]] = {
        "weights": {"lr": lr, "weight_decay": weight_decay},
        "biases and norms": {
            "lr": lr,
            "weight_decay": weight_decay if norm_weight_decay is None else norm_weight_decay,
        },
        "C and D": {"lr": lr if ep_lr is None else ep_lr, "weight_decay": ep_weight_decay},
    }
    for name, group in groups.items():
        group.update(name=name, params=[])
    for p in model.parameters():
        if p.requires_grad:
            small = "biases and norms" if p.ndim < 2 else "weights"
            groups["C and D" if id(p) in factors else small]["params"].append(p)
    return [g for g in groups.values() if g["params"]]
