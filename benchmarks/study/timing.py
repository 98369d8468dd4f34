"""CPU seconds of scoring a ResNet-56 once, by each criterion, beside torch-pruning's own.

Both libraries have traced the network before the clock starts. torch-pruning's Hessian needs a
backward pass through the whole batch for each sample, so batches are small here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch_pruning  # type: ignore[import-untyped]
from torch import nn
from torch.nn import functional

import obc
from benchmarks import _peer
from benchmarks._curves import Batch, loss
from benchmarks._harness import race, save
from obc.experiments.comparison import CRITERIA
from obc.models import resnet56

ROWS, BATCH, ROUNDS = 4, 16, 2
IMPORTANCE = torch_pruning.importance
WEIGHTS_ALONE = {
    "random": IMPORTANCE.RandomImportance,
    "l1": lambda: IMPORTANCE.GroupMagnitudeImportance(p=1),
    "l2": lambda: IMPORTANCE.GroupMagnitudeImportance(p=2),
    "bn_scale": IMPORTANCE.BNScaleImportance,
    "fpgm": IMPORTANCE.FPGMImportance,
}


def peer(model: nn.Module, groups: list[Any], batches: list[Batch], criterion: str) -> None:
    """torch-pruning's importance of all groups, gradients included."""
    if criterion in WEIGHTS_ALONE:
        importance = WEIGHTS_ALONE[criterion]()
    elif criterion == "jacobian":
        importance = _peer.Jacobian()
        importance.gather(model, batches, loss)
    elif criterion == "taylor":
        importance = IMPORTANCE.GroupTaylorImportance()
        model.zero_grad()
        for batch in batches:
            loss(model, batch).backward()
    else:
        importance = IMPORTANCE.GroupHessianImportance()
        for x, y in batches:
            for sample in functional.cross_entropy(model(x), y, reduction="none"):
                model.zero_grad()
                sample.backward(retain_graph=True)
                importance.accumulate_grad(model)
    for group in groups:
        importance(group)


def run() -> None:
    torch.manual_seed(0)
    model = resnet56().eval()
    batches = [(torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))) for _ in range(ROWS)]
    example = batches[0][0][:1]
    sites = obc.trace(model, example)
    groups = _peer.groups(model, example, [model.fc])
    contenders: dict[tuple[str, str], Callable[[], object]] = {}
    for name in CRITERIA:
        contenders[name, "obc"] = lambda c=name: obc.score(  # type: ignore[misc]
            model, sites, batches, loss, criterion=c
        )
        if name != "whc":  # which it does not have
            contenders[name, "torch-pruning"] = lambda c=name: peer(model, groups, batches, c)  # type: ignore[misc]
    times = race(contenders, ROUNDS)
    seconds: dict[str, dict[str, float]] = {name: {} for name in CRITERIA}
    for (name, library), timing in times.items():
        seconds[name][library] = timing.best
    protocol = {"network": "ResNet-56, random weights", "rows": ROWS, "batch": BATCH}
    save("study_time", {**protocol, "rounds": ROUNDS, "CPU seconds": seconds})
