"""Accuracy after the same fine-tuning, naive against equivalent pruning: ResNet-20 on digits."""

from __future__ import annotations

import argparse
import copy
import statistics
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

import obc
from benchmarks._harness import save, show
from obc.models import resnet20
from obc.surgery.slicing import sliced
from obc.trace.narrow import narrow

SPEEDUPS = (2, 4, 8)
# The paper's rates for ResNet-56 on CIFAR: weights, then C and D.
LR, DECAY, EP_LR, EP_DECAY = 0.01, 5e-4, 0.02, 0.0
# C and D make the same rate go further, so the naive network is tuned at three times it, too.
ARMS: dict[str, tuple[dict[str, Any], float]] = {
    "naive": ({}, LR),
    "naive, lr x 3": ({}, 3 * LR),
    "equivalent": ({"equivalent": True}, LR),
}


def digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """1,437 training and 360 test images, split by the seed."""
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32)[:, None] / 8 - 1
    y = torch.tensor(data.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, test = order[:1437], order[1437:]
    return x[train], y[train], x[test], y[test]


def tune(model: nn.Module, x: Tensor, y: Tensor, epochs: int, groups: Any, seed: int) -> None:
    """SGD with momentum and a cosine schedule; batches are the same for every arm of a seed."""
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    random = torch.Generator().manual_seed(seed)
    steps = -(-len(x) // 64) * epochs
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=random).split(64):
            optimizer.zero_grad()
            functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
            schedule.step()
    model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return float((model(x).argmax(1) == y).float().mean()) * 100


def loss(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def plan_for(model: nn.Module, x: Tensor, y: Tensor, speedup: float) -> obc.Plan:
    """The lowest by the Jacobian Criterion, ranked together, down to the wanted MACs.

    A tenth of every site stays, for one scoring at full width says little about what is left.
    """
    sites = obc.trace(model, x[:1])
    batches = [(x[i : i + 64], y[i : i + 64]) for i in range(0, 640, 64)]
    scores = obc.score(model, sites, batches, loss)
    ranked = sorted((float(v), n, c) for n, s in scores.items() for c, v in enumerate(s))
    full, low, high = obc.cost(model, x[:1]).macs, 0, len(ranked)
    while high - low > 8:  # of about 700 channels
        middle = (low + high) // 2
        small = copy.deepcopy(model)
        narrow(small, sites, without(ranked[:middle], sites), sliced)
        faster = full / obc.cost(small, x[:1]).macs >= speedup
        low, high = (low, middle) if faster else (middle, high)
    return obc.Plan.from_kept(sites, without(ranked[:high], sites))


def without(gone: list[tuple[float, str, int]], sites: obc.Sites) -> dict[str, list[int]]:
    kept = {s.name: list(range(s.size)) for s in sites}
    for _, name, channel in gone:
        if len(kept[name]) > max(1, sites[name].size // 10):
            kept[name].remove(channel)
    return kept


def one_seed(seed: int, epochs: int) -> dict[str, float]:
    torch.manual_seed(seed)
    x, y, test_x, test_y = digits(seed)
    model = resnet20(in_channels=1)
    tune(model, x, y, 6, obc.parameter_groups(model, 0.1, DECAY), seed)
    found = {"trained": accuracy(model, test_x, test_y)}
    for speedup in SPEEDUPS:
        plan = plan_for(model, x, y, speedup)
        for arm, (how, lr) in ARMS.items():
            pruned = obc.apply(copy.deepcopy(model), plan, **how)
            found[f"{speedup}x before tuning"] = accuracy(pruned, test_x, test_y)
            groups = obc.parameter_groups(pruned, lr, DECAY, EP_LR, EP_DECAY)
            tune(pruned, x, y, epochs, groups, seed)
            if how:
                obc.merge(pruned)
            found[f"{speedup}x {arm}"] = accuracy(pruned, test_x, test_y)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5, help="of fine-tuning")
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = []
    for seed in range(options.seeds):
        runs.append(one_seed(seed, options.epochs))
        print(seed, runs[-1], flush=True)

    def cell(key: str) -> str:
        values = [run[key] for run in runs]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        return f"{statistics.mean(values):.2f} ± {spread:.2f}"

    keys = ["before tuning", *ARMS]
    rows = [[f"{s}x", *(cell(f"{s}x {key}") for key in keys)] for s in SPEEDUPS]
    show(
        f"ResNet-20 on digits, test accuracy in %, {len(runs)} seeds; trained: {cell('trained')}",
        ["MACs", *keys],
        rows,
    )
    save("equivalent_accuracy", {"epochs": options.epochs, "rows": rows, "runs": runs})


if __name__ == "__main__":
    main()
