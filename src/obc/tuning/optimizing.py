"""The optimizer and the schedule that a recipe describes, as torch has them."""

from __future__ import annotations

import warnings

import torch
from torch import nn
from torch.optim import lr_scheduler as schedules

from obc.equivalent.groups import parameter_groups
from obc.tuning.recipe import Recipe


def optimizer_of(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """SGD or AdamW, with a rate and decay of their own for C and D."""
    decay = recipe.ep_weight_decay
    groups = parameter_groups(
        model,
        recipe.lr,
        recipe.weight_decay,
        recipe.ep_lr,
        recipe.weight_decay if decay is None else decay,
    )
    # On processors torch goes over the weights once for each operation unless told otherwise.
    fused = all(p.device.type == "cpu" for p in model.parameters()) or None
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum, fused=fused)
    first, second = recipe.betas
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=(first, second), fused=fused)


def schedule_of(
    optimizer: torch.optim.Optimizer, recipe: Recipe, steps: int, done: int = 0
) -> schedules.LRScheduler:
    """A schedule to be stepped after every one of an epoch's `steps`, at step `done`.

    Coming back to a step means stepping there: rates then have the very bits they had.
    """
    warm = recipe.warmup_epochs * steps
    rest = recipe.epochs * steps - warm
    main: schedules.LRScheduler
    if recipe.schedule == "cosine":
        main = schedules.CosineAnnealingLR(optimizer, rest)
    else:
        marks = [m * steps - warm for m in recipe.milestones]
        main = schedules.MultiStepLR(optimizer, marks, recipe.gamma)
    if warm:
        warmup = schedules.LinearLR(optimizer, recipe.warmup_factor, total_iters=warm)
        main = schedules.SequentialLR(optimizer, [warmup, main], [warm])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the optimizer's own steps were made in another life
        for _ in range(done):
            main.step()
    return main
