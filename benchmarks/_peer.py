"""torch-pruning, the library that others use for this: how the benchmarks call it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

import torch
import torch_pruning  # type: ignore[import-untyped]
from torch import Tensor, nn

from obc.running.forward import outputs

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


class Jacobian(torch_pruning.importance.GroupMagnitudeImportance):  # type: ignore[misc]
    """The Jacobian Criterion in the library's own terms: J kept by concatenation, then used."""

    def __init__(self) -> None:
        super().__init__(group_reduction="sum", normalizer=None)
        self.jacobian: dict[nn.Parameter, Tensor] = {}

    def gather(self, model: nn.Module, batches: Any, loss: Callable[[Any, Any], Tensor]) -> None:
        rows: dict[nn.Parameter, list[Tensor]] = {p: [] for p in model.parameters()}
        for batch in batches:
            model.zero_grad()
            loss(model, batch).backward()
            for p in model.parameters():
                rows[p].append(p.grad.detach().clone()[None])  # type: ignore[union-attr]
        self.jacobian = {p: torch.cat(r) for p, r in rows.items()}

    @torch.no_grad()
    def __call__(self, group: Any) -> Tensor | None:
        scores, places = [], []
        function = torch_pruning.pruner.function
        for i, (dep, idxs) in enumerate(group):
            layer = dep.layer
            if not isinstance(layer, tuple(self.target_types)):
                continue
            if dep.pruning_fn in (
                function.prune_conv_in_channels,
                function.prune_linear_in_channels,
            ):
                own = (layer.weight * self.jacobian[layer.weight]).transpose(1, 2)[:, idxs]
                product = own.flatten(2).sum(2)
            else:
                own = (layer.weight * self.jacobian[layer.weight])[:, idxs]
                product = own.flatten(2).sum(2) if own.ndim > 2 else own
                if layer.bias is not None:
                    product = product + (layer.bias * self.jacobian[layer.bias])[:, idxs]
            scores.append(product.square().sum(0))
            places.append(group[i].root_idxs)
        return self._reduce(scores, places) if scores else None


def prune_by_jacobian(
    model: nn.Module,
    example: Tensor,
    batches: list[Any],
    loss: Callable[[Any, Any], Tensor],
    rows: int,
    step: float,
    speedup: float = 2.0,
) -> int:
    """Algorithm 1 with the library's pruner, in place; returns the number of steps."""
    importance = Jacobian()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pruner = torch_pruning.pruner.MetaPruner(
            model,
            example,
            importance=importance,
            global_pruning=True,
            pruning_ratio=1.0,
            iterative_steps=round(1 / step),
            ignored_layers=[model.fc],
            in_channel_groups={},
            out_channel_groups={},
            num_heads={},
        )
        stream = cycle(batches)
        before, _ = torch_pruning.utils.count_ops_and_params(model, example)
        steps, now = 0, before
        while now > before / speedup:
            importance.gather(model, islice(stream, rows), loss)
            pruner.step()
            steps += 1
            now, _ = torch_pruning.utils.count_ops_and_params(model, example)
    return steps
