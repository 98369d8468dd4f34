"""Train a ResNet-20 on digits, prune it by its recipe, tune it naively and by EP, compare."""

from __future__ import annotations

import argparse
import copy
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import obc
from obc.data import Batch, load
from obc.models import resolve


def loss(model: nn.Module, batch: Batch) -> Tensor:
    return functional.cross_entropy(model(batch.images), batch.labels)


def once(seed: int, target: str, epochs: int, folder: Path) -> list[float]:
    """Top-1 accuracies: trained, pruned, tuned naively, tuned by EP."""
    torch.manual_seed(seed)
    data, recipe = load("digits"), obc.Recipe.load("resnet20-digits").changed(seed=seed)
    assert recipe.model and recipe.prune
    channels, *_ = data.shape
    model = resolve(recipe.model, num_classes=len(data.classes), in_channels=channels)
    first = recipe.changed(lr=0.1, prune=None)
    found = [obc.finetune(model, data.train, data.test, first, out=folder / "trained").last]
    model.eval()
    batches = list(data.train.train(recipe.prune.batch_size, seed=seed))
    plan = obc.plan(
        model,
        torch.zeros(1, *data.shape),
        batches,
        loss,
        target=target,
        criterion=recipe.prune.criterion,
        rows=recipe.prune.rows,
        step=recipe.prune.step,
        seed=seed,
    )
    for name, equivalent in (("naive", False), ("EP", True)):
        pruned = obc.apply(copy.deepcopy(model), plan, equivalent=equivalent)
        if not equivalent:
            found.append(obc.evaluate(pruned, data.test))
        own = recipe.changed(epochs=epochs)
        found.append(obc.finetune(pruned, data.train, data.test, own, out=folder / name).last)
    return [score.top1 for score in found if score is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--target", default="macs=2x")
    parser.add_argument("--epochs", type=int, default=3, help="of tuning")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'seed':<6}{'trained':>9}{'pruned':>9}{'naive':>9}{'EP':>9}")
    rows = []
    for seed in range(given.seeds):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(once(seed, given.target, given.epochs, Path(folder)))
        print(f"{seed:<6}" + "".join(f"{v:9.2f}" for v in rows[-1]), flush=True)
    means = [sum(column) / len(column) for column in zip(*rows, strict=True)]
    print(f"{'mean':<6}" + "".join(f"{v:9.2f}" for v in means))


if __name__ == "__main__":
    main()
