"""Accuracy after the same fine-tuning, naive against equivalent pruning."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import obc
from benchmarks import _curves
from benchmarks._harness import save, show, spread
from obc.models import resnet20

SPEEDUPS = (2, 4, 8)
# The paper's rates for ResNet-56 on CIFAR: weights, then C and D.
LR, DECAY, EP_LR, EP_DECAY = 0.01, 5e-4, 0.02, 0.0
# C and D make the same rate go further, so the naive network is tuned at three times it, too.
ARMS: dict[str, tuple[dict[str, Any], float]] = {
    "naive": ({}, LR),
    "naive, lr x 3": ({}, 3 * LR),
    "equivalent": ({"equivalent": True}, LR),
}


def tune(
    model: nn.Module,
    data: _curves.Data,
    epochs: int,
    size: int,
    groups: Any,
    seed: int,
    watch: Callable[[], None] = lambda: None,
    views: Callable[[Tensor], Tensor] = lambda images: images,
) -> None:
    """SGD with momentum and a cosine schedule; batches are the same for every arm of a seed.

    `watch` is called after each epoch, the model in eval mode; `views` changes the images of a
    batch, at random perhaps.
    """
    x, y = data.train
    torch.manual_seed(seed)  # views, too, are the same for every arm
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    random = torch.Generator().manual_seed(seed)
    steps = -(-len(x) // size) * epochs
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(epochs):
        model.train()
        for batch in torch.randperm(len(x), generator=random).split(size):
            optimizer.zero_grad()
            _curves.loss(model, (views(x[batch]), y[batch])).backward()
            optimizer.step()
            schedule.step()
        model.eval()
        watch()


def one_seed(model: nn.Module, data: _curves.Data, options: Any, seed: int) -> dict[str, float]:
    found = {"trained": _curves.accuracy(model, data.test)}
    plans = obc.plan(
        model,
        data.test[0][:1],
        data.batches(64),
        _curves.loss,
        target=[obc.MACs(speedup=s) for s in SPEEDUPS],
        rows=options.rows,
        step=options.step,
    )
    for speedup, plan in zip(SPEEDUPS, plans, strict=True):
        untuned = obc.apply(copy.deepcopy(model), plan)
        found[f"{speedup}x before tuning"] = _curves.accuracy(untuned, data.test)
        for arm, (how, lr) in ARMS.items():
            pruned = obc.apply(copy.deepcopy(model), plan, **how)
            groups = obc.parameter_groups(pruned, lr, DECAY, EP_LR, EP_DECAY)
            tune(pruned, data, options.epochs, options.batch, groups, seed)
            if how:
                obc.merge(pruned)
            found[f"{speedup}x {arm}"] = _curves.accuracy(pruned, data.test)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=("digits", "cifar"), default="digits")
    parser.add_argument("--folder", type=Path, help="where CIFAR-10 is")
    parser.add_argument("--weights", type=Path, help="ResNet-56 for CIFAR-10, safetensors")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5, help="of fine-tuning")
    parser.add_argument("--batch", type=int, default=64, help="of fine-tuning")
    parser.add_argument("--images", type=int, default=6400, help="of CIFAR-10, to tune on")
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--step", type=float, default=0.02)
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = []
    for seed in range(options.seeds):
        torch.manual_seed(seed)
        if options.data == "cifar":
            data = _curves.cifar(seed, options.folder, options.images, 2000)
            model = _curves.given(options.weights)
        else:
            data = _curves.digits(seed)
            model = resnet20(in_channels=1)
            tune(model, data, 6, 64, obc.parameter_groups(model, 0.1, DECAY), seed)
        runs.append(one_seed(model, data, options, seed))
        print(seed, runs[-1], flush=True)
        report(runs, options)


def report(runs: Sequence[dict[str, float]], options: Any) -> None:
    """The table over the seeds so far; a run of hours may not end."""

    def cell(key: str, less: str | None = None) -> str:
        return spread([run[key] - (run[less] if less else 0.0) for run in runs], 2)

    keys = ["before tuning", *ARMS]
    rows = []
    for s in SPEEDUPS:  # seeds differ more than arms, so the gain is taken seed by seed
        gains = [cell(f"{s}x equivalent", f"{s}x {arm}") for arm in ("naive", "naive, lr x 3")]
        rows.append([f"{s}x", *(cell(f"{s}x {key}") for key in keys), *gains])
    title = f"{options.data}, test accuracy in %, {len(runs)} seeds; trained: {cell('trained')}"
    show(title, ["MACs", *keys, "EP - naive", "EP - lr x 3"], rows)
    name = "equivalent_accuracy" + ("_cifar" if options.data == "cifar" else "")
    save(name, {"epochs": options.epochs, "rows": rows, "runs": runs})


if __name__ == "__main__":
    main()
