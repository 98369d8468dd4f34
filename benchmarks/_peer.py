"""torch-pruning, the library that others use for this: how the benchmarks call it."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch_pruning  # type: ignore[import-untyped]
from torch import nn

from obc.trace.running import outputs

ROOTS = (nn.modules.conv._ConvNd, nn.Linear)


def groups(model: nn.Module, example: Any, ignored: list[nn.Module]) -> list[Any]:
    """Trace a model and form every group, with all channels of each: what `obc.trace` answers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tells of each parameter outside a layer it knows
        graph = torch_pruning.DependencyGraph().build_dependency(model, example)
        return list(graph.get_all_groups(ignored_layers=ignored, root_module_types=ROOTS))


def prune(
    model: nn.Module, example: Any, ignored: list[nn.Module], ratio: float, seed: int = 0
) -> None:
    """Remove a share of every group at random, in place, with the pruner's default settings."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        pruner = torch_pruning.pruner.MetaPruner(
            model,
            example,
            importance=torch_pruning.importance.RandomImportance(),
            pruning_ratio=ratio,
            ignored_layers=ignored,
            output_transform=lambda out: [t for t in outputs(out) if t.requires_grad],
            # Its defaults are dicts shared by all pruners; fresh ones keep models apart.
            in_channel_groups={},
            out_channel_groups={},
            num_heads={},
        )
        pruner.step()
