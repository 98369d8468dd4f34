"""Prune a trained ResNet-56 to half its MACs on CIFAR-10, tune it naively and by EP, compare."""

from __future__ import annotations

import argparse
import copy
import json
import time
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

import obc
from obc.data import Batch, Loaded, load
from obc.models import resolve


def loss(model: nn.Module, batch: Batch) -> Tensor:
    return functional.cross_entropy(model(batch.images), batch.labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder that `obc data cifar10` wrote")
    parser.add_argument("--weights", required=True, help="safetensors file of the trained model")
    parser.add_argument("--out", default="runs/resnet56", help="where the runs are kept")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--images", type=int, default=50000, help="how many to tune on")
    parser.add_argument("--rows", type=int, default=10, help="N: batches per scoring")
    parser.add_argument("--step", type=float, default=0.02, help="p: share removed per scoring")
    parser.add_argument("--target", default="macs=2x")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(given.seed)

    data = load("cifar10", given.data)
    assert isinstance(data.train, Loaded)
    train = data.train.part(given.images)
    model = resolve("resnet56", num_classes=len(data.classes)).eval()
    model.load_state_dict(load_file(given.weights))
    recipe = obc.Recipe.load("resnet56-cifar10").changed(
        epochs=given.epochs, schedule="cosine", milestones=[], seed=given.seed, sparse=None
    )
    example = torch.zeros(1, *data.shape)
    rows: dict[str, object] = {"before": vars_of(obc.evaluate(model, data.test), model, example)}
    print("before        ", rows["before"], flush=True)

    start = time.perf_counter()
    batches = list(islice(data.train.train(64, seed=given.seed), 200))
    plan = obc.plan(
        model,
        example,
        batches,
        loss,
        target=given.target,
        rows=given.rows,
        step=given.step,
        resume=Path(given.out) / "plan",
    )
    took = time.perf_counter() - start
    for name, equivalent in (("naive", False), ("EP", True)):
        pruned = copy.deepcopy(model)
        obc.apply(pruned, plan, equivalent=equivalent)
        if not equivalent:
            rows["pruned"] = vars_of(obc.evaluate(pruned, data.test), pruned, example)
            print(f"pruned {took:5.0f} s", rows["pruned"], flush=True)
        start = time.perf_counter()
        obc.finetune(pruned, train, data.test, recipe, out=Path(given.out) / name)
        took = time.perf_counter() - start
        rows[name] = vars_of(obc.evaluate(pruned, data.test), pruned, example)
        print(f"{name:<6} {took:5.0f} s", rows[name], flush=True)
    print(json.dumps({"arguments": vars(given), "results": rows}, indent=1))


def vars_of(score: obc.Evaluation, model: nn.Module, example: Tensor) -> dict[str, float]:
    cost = obc.cost(model, example)
    return {"top1": round(score.top1, 2), "loss": round(score.loss, 4), "macs": cost.macs}


if __name__ == "__main__":
    main()
