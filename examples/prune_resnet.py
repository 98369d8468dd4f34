"""Train a small ResNet on digits, score it by the Jacobian Criterion, cut a third of it away."""

from __future__ import annotations

import copy
import time

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

import obc
from obc.models import resnet20

Batch = tuple[Tensor, Tensor]


def digits() -> tuple[list[Batch], Batch]:
    """1,797 real 8 x 8 images: training batches of 64, and a test set."""
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32)[:, None] / 8 - 1
    y = torch.tensor(data.target)
    order = torch.randperm(len(x))
    train, test = order[:1437], order[1437:]
    return [(x[i], y[i]) for i in train.split(64)], (x[test], y[test])


def loss(model: nn.Module, batch: Batch) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def train(model: nn.Module, batches: list[Batch], epochs: int, lr: float) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9, weight_decay=5e-4)
    steps = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, epochs * len(batches))
    model.train()
    for _ in range(epochs):
        for batch in batches:
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()
            steps.step()
    model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, batch: Batch) -> float:
    return float((model(batch[0]).argmax(1) == batch[1]).float().mean()) * 100


def lowest(scores: dict[str, Tensor], sites: obc.Sites, share: float) -> dict[str, list[int]]:
    """Rank all channels together and keep the rest; a quarter of every site stays at least."""
    kept = {s.name: list(range(s.size)) for s in sites}
    ranked = sorted((float(v), n, c) for n, s in scores.items() for c, v in enumerate(s))
    wanted = int(share * len(ranked))
    for _, name, channel in ranked:
        if wanted and len(kept[name]) > sites[name].size // 4:
            kept[name].remove(channel)
            wanted -= 1
    return kept


def main() -> None:
    torch.manual_seed(0)
    batches, test = digits()
    example = test[0][:1]
    model = resnet20(in_channels=1).eval()
    train(model, batches, epochs=8, lr=0.1)
    print(f"trained            {accuracy(model, test):6.2f}%  {obc.cost(model, example)}")

    start = time.perf_counter()
    sites = obc.trace(model, example)
    print(f"traced in {time.perf_counter() - start:.2f} s: {len(sites)} sites,", end=" ")
    print(f"{sum(s.size for s in sites)} channels; frozen: {', '.join(map(str, sites.frozen))}")

    for criterion in ("random", "l1", "taylor", "jacobian"):
        pruned = copy.deepcopy(model)
        scores = obc.score(pruned, sites, batches[:10], loss, criterion=criterion)
        plan = obc.Plan.from_kept(sites, lowest(scores, sites, 0.33))
        obc.apply(pruned, plan)
        print(
            f"{criterion:<10} pruned  {accuracy(pruned, test):6.2f}%  {obc.cost(pruned, example)}"
        )

    error = obc.verify(model, pruned, plan, example)
    print(f"the pruned model is the masked original, to {error:.1e}")
    train(pruned, batches, epochs=4, lr=0.02)
    print(f"tuned              {accuracy(pruned, test):6.2f}%  {obc.cost(pruned, example)}")


if __name__ == "__main__":
    main()
