"""Accuracy over MACs without tuning: real data, small ResNets, several seeds, one run a curve."""

from __future__ import annotations

import copy
import gzip
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

import obc
from benchmarks._harness import show, spread
from obc.data import Images, load
from obc.models import resnet20, resnet56

Batch = tuple[Tensor, Tensor]
SPEEDUPS = (1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0)


class Data(NamedTuple):
    """Images and labels for training and testing, shuffled by the seed."""

    train: Batch
    test: Batch

    def batches(self, size: int) -> list[Batch]:
        x, y = self.train
        return [(a, b) for a, b in zip(x.split(size), y.split(size), strict=True) if len(a) == size]


def digits(seed: int) -> Data:
    """1,797 real 8 x 8 images, of which 360 are for testing."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    found = load_digits()
    x = torch.tensor(found.images, dtype=torch.float32)[:, None] / 8 - 1
    y = torch.tensor(found.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, test = order[:1437], order[1437:]
    return Data((x[train], y[train]), (x[test], y[test]))


def fashion(seed: int, folder: Path, count: int = 3000) -> Data:
    """Fashion-MNIST from its idx.gz files, averaged to 14 x 14, part of it."""

    def read(name: str, skip: int) -> np.ndarray:
        raw = gzip.decompress((folder / name).read_bytes())
        return np.frombuffer(raw, dtype=np.uint8, offset=skip).copy()

    def images(name: str) -> Tensor:
        x = torch.tensor(read(f"{name}-images-idx3-ubyte.gz", 16)).view(-1, 1, 28, 28).float()
        return functional.avg_pool2d(x, 2) / 127.5 - 1

    def labels(name: str) -> Tensor:
        return torch.tensor(read(f"{name}-labels-idx1-ubyte.gz", 8)).long()

    x, y = images("train"), labels("train")
    some = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:count]
    return Data((x[some], y[some]), (images("t10k")[:2000], labels("t10k")[:2000]))


def cifar(seed: int, folder: Path, train: int = 6400, test: int = 1000) -> Data:
    """Images of CIFAR-10 drawn by the seed to score and tune with, and the first for testing."""

    def part(images: Images, index: Tensor) -> Batch:
        return images.normalised(images.unit(images.fetch(index, None))), images.labels[index]

    found = load("cifar10", folder)
    order = torch.randperm(len(found.train), generator=torch.Generator().manual_seed(seed))
    return Data(part(found.train, order[:train]), part(found.test, torch.arange(test)))


def loss(model: nn.Module, batch: Batch) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def trained(data: Data, seed: int, epochs: int, width: int = 8) -> nn.Module:
    """A ResNet-20 for this data."""
    torch.manual_seed(seed)
    model = resnet20(in_channels=data.train[0].shape[1], width=width)
    batches = data.batches(64)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    steps = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, epochs * len(batches))
    for _ in range(epochs):
        for i in torch.randperm(len(batches)).tolist():
            optimizer.zero_grad()
            loss(model, batches[i]).backward()
            optimizer.step()
            steps.step()
    return model.eval()


def given(weights: Path) -> nn.Module:
    """The ResNet-56 that was trained on CIFAR-10."""
    model = resnet56()
    model.load_state_dict(load_file(weights))
    return model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, batch: Batch) -> float:
    right = [
        (model(x).argmax(1) == y).sum()
        for x, y in zip(batch[0].split(500), batch[1].split(500), strict=True)
    ]
    return 100 * float(sum(right)) / len(batch[1])


def points(
    model: nn.Module,
    data: Data,
    batches: list[Batch],
    settings: Mapping[str, Any],
    speedups: Sequence[float],
    samples: int = 0,
    refit: Sequence[float] | None = None,
) -> dict[str, Any]:
    """One planning run: at each speed-up, what was removed and the accuracy that is left.

    With `samples`, also after recalibration with the first so many training images, and what that
    took in CPU seconds; at the speed-ups `refit`, or at all.
    """
    targets = [obc.MACs(speedup=s) for s in speedups]
    start = time.process_time()
    plans = obc.plan(model, data.test[0][:1], batches, loss, target=targets, **settings)
    planning = time.process_time() - start
    at = []
    for speedup, plan in zip(speedups, plans, strict=True):
        pruned = obc.apply(copy.deepcopy(model), plan)
        point = {"speedup": speedup, **removed(plan), "cut": accuracy(pruned, data.test)}
        if samples and (refit is None or speedup in refit):
            point |= recalibrated(pruned, model, data, samples)
        at.append(point)
    return {"planning seconds": planning, "steps": len(plans[-1].history), "points": at}


def removed(plan: obc.Plan) -> dict[str, float]:
    """The shares of channels, parameters and MACs that are gone."""
    before, after = plan.before, plan.after
    assert before is not None and after is not None
    costs = ("channels", "params", "macs")
    return {name: 1 - getattr(after, name) / getattr(before, name) for name in costs}


def recalibrated(pruned: nn.Module, model: nn.Module, data: Data, samples: int) -> dict[str, Any]:
    """Recalibrate in place; the accuracy after it, and its account."""
    start = time.process_time()
    account = obc.recalibrate(pruned, model, data.train[0][:samples].split(64), samples=samples)
    seconds = time.process_time() - start
    return {
        "recalibrated": accuracy(pruned, data.test),
        "seconds": seconds,
        "residual": account.residual,
        "kept": account.kept,
        "error": [account.before, account.after],
    }


def curve(
    model: nn.Module,
    data: Data,
    batches: list[Batch],
    settings: Mapping[str, Any],
    speedups: Sequence[float],
) -> dict[str, Any]:
    """Accuracies at all speed-ups of one run, and the CPU seconds it took."""
    run = points(model, data, batches, settings, speedups)
    accuracies = [point["cut"] for point in run["points"]]
    return {"accuracy": accuracies, "seconds": run["planning seconds"], "steps": run["steps"]}


def table(
    title: str, results: Mapping[str, Sequence[Mapping[str, Any]]], speedups: Sequence[float]
) -> None:
    """Mean and deviation over seeds at each speed-up and over all, and the gain over the first.

    Seeds differ more than settings, so the gain is taken seed by seed, on the same network.
    """
    rows = []
    first = [statistics.mean(r["accuracy"]) for r in next(iter(results.values()))]
    for name, runs in results.items():
        points = list(zip(*(r["accuracy"] for r in runs), strict=True))
        means = [statistics.mean(r["accuracy"]) for r in runs]
        gain = [a - b for a, b in zip(means, first, strict=False)]
        cpu = statistics.mean(r["seconds"] for r in runs)
        cells = (spread(means), spread(gain), *(spread(p) for p in points))
        rows.append((name, *cells, f"{cpu:.0f}"))
    show(title, ("setting", "mean", "gain", *(f"{s:g}x" for s in speedups), "CPU s"), rows)


def draw(
    path: Path,
    title: str,
    results: Mapping[str, Sequence[Mapping[str, Any]]],
    speedups: Sequence[float],
) -> None:
    """The curves, with one standard deviation to each side."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, runs in results.items():
        points = torch.tensor([r["accuracy"] for r in runs], dtype=torch.float64)
        mean = points.mean(0)
        (line,) = axes.plot(speedups, mean, marker="o", markersize=3, label=name)
        if len(points) > 1:
            off = points.std(0)
            axes.fill_between(
                speedups, mean - off, mean + off, color=line.get_color(), alpha=0.12, linewidth=0
            )
    axes.set(xlabel="MACs speed-up", ylabel="test accuracy, %, without tuning", title=title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path)
