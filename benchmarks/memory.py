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
from benchmarks._harness import CONSOLE, Cells, peak_memory, show
from benchmarks.decoder import SHAPES
from obc.models.resolver import library, resolve

VERBS = ("forward", "forward + backward", "plan, l2", "plan", "apply", "save", "recalibrate")
GOALS = {"plan, l2": 1.5, "apply": 1.5, "save": 1.0}  # one working copy; one cut; no copy


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    found = model(batch)
    found = getattr(found, "logits", found)
    return found.float().logsumexp(-1).mean() - found.float().mean()


def decoder() -> nn.Module:
    """A decoder of 135 M parameters, with random weights."""
    hf = library("transformers", "hf")
    model: nn.Module = hf.LlamaForCausalLM(hf.LlamaConfig(**SHAPES))
    return model


def square(model: nn.Module) -> int:
    """Bytes of the largest covariance of what a weight reads, in float64."""
    weights = [p for p in model.parameters() if p.ndim > 1]
    return max(8 * p[0].numel() ** 2 for p in weights)


def verbs(
    model: nn.Module, example: Any, batches: list[Any], target: str
) -> tuple[nn.Module, dict[str, Callable[[], object]]]:
    """A pruned model, made before, and each verb as a function of no arguments."""
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
    return pruned, calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet50", help="or decoder, or hf:FOLDER")
    parser.add_argument("--target", default="params=70%")
    parser.add_argument("--verbs", nargs="+", choices=VERBS, default=VERBS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder = options.model.startswith("hf:")
    text = folder or options.model == "decoder"
    model = decoder() if options.model == "decoder" else resolve(options.model, pretrained=folder)
    model.eval()
    batches: list[Any] = [torch.randn(1, 3, 64, 64) for _ in range(4)]
    if text:
        batches = [torch.randint(0, 1000, (1, 64)) for _ in range(4)]
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    name = options.model.split(":")[0]
    cells = Cells(f"memory_{name}", {"model": options.model.split("/")[-1], "weights": weights})
    pruned, calls = verbs(model, batches[0], batches, options.target)
    cells.add("largest covariance", {"weights": square(pruned) / weights})
    for verb in options.verbs:
        cells.add(verb, {"weights": peak_memory(calls[verb]) / weights})
        CONSOLE.print(verb, cells.results[verb]["weights"])
    rows = []
    for verb, cell in cells.results.items():
        goal = GOALS.get(verb)
        rows.append((verb, f"{cell['weights']:.2f}", "" if goal is None else f"≤ {goal}"))
    title = f"Peak beside the model, in multiples of its weights ({weights / 1e6:.0f} MB)"
    show(f"{title}: {options.model.split('/')[-1]}", ("verb", "× weights", "goal"), rows)


if __name__ == "__main__":
    main()
