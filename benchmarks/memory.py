"""The peak of each verb beside the model itself, in multiples of the model's weights."""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import obc
from benchmarks._harness import CONSOLE, peak_memory, save, show
from obc.models.resolver import resolve

GOALS = {"plan, l2": 1.5, "apply": 1.5, "save": 1.0}  # one working copy; one cut; no copy


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    found = model(batch)
    found = getattr(found, "logits", found)
    return found.float().logsumexp(-1).mean() - found.float().mean()


def verbs(model: nn.Module, example: Any, batches: list[Any], target: str) -> dict[str, Any]:
    """Each verb as a function of no arguments; what one needs of the others is made before."""
    plan = obc.plan(model, example, target=target, criterion="l2", step=0.1)
    pruned = obc.apply(copy.deepcopy(model), plan, example=example)
    folder = tempfile.mkdtemp()
    calls: dict[str, Callable[[], object]] = {
        "forward": lambda: loss(model, batches[0]),
        "forward + backward": lambda: loss(model, batches[0]).backward(),  # type: ignore[no-untyped-call]
        "plan, l2": lambda: obc.plan(model, example, target=target, criterion="l2", step=0.1),
        "plan": lambda: obc.plan(model, example, batches, loss, target=target, step=0.2, rows=2),
        "apply": lambda: obc.apply(model, plan, example=example),
        "save": lambda: obc.save(pruned, Path(folder) / "saved"),
        "recalibrate": lambda: obc.recalibrate(pruned, model, batches, samples=len(batches)),
    }
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet50", help="or hf:FOLDER")
    parser.add_argument("--target", default="params=70%")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    text = options.model.startswith("hf:")
    model = resolve(options.model, pretrained=text).eval()
    batches: list[Any] = [torch.randn(1, 3, 64, 64) for _ in range(4)]
    if text:
        batches = [torch.randint(0, 1000, (1, 64)) for _ in range(4)]
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    rows, results = [], {}
    for name, call in verbs(model, batches[0], batches, options.target).items():
        share = peak_memory(call) / weights
        results[name] = share
        goal = GOALS.get(name)
        rows.append((name, f"{share:.2f}", "" if goal is None else f"≤ {goal}"))
        CONSOLE.print(rows[-1])
        facts = {"model": options.model.split("/")[-1], "weights": weights}
        save("memory_" + options.model.split(":")[0], {**facts, "peaks": results})
    title = f"Peak beside the model, in multiples of its weights ({weights / 1e6:.0f} MB)"
    show(f"{title}: {options.model.split('/')[-1]}", ("verb", "× weights", "goal"), rows)


if __name__ == "__main__":
    main()
