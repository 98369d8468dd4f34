"""Whether 1.5x asked is 1.5x got where the model runs, and what MACs alone come to."""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import obc
from benchmarks._harness import CONSOLE, RESULTS, save, show
from obc.models import mobilenet_v2, resnet56, vit_small
from obc.running.runtimes import seconds

GOAL = 0.05  # off the speed-up that was asked for
MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "ResNet-56": (resnet56, 32),
    "MobileNetV2": (mobilenet_v2, 96),
    "ViT": (lambda: vit_small(image=64, patch=8, dim=192, depth=6, heads=3), 64),
}


def by_runtime(whole: nn.Module, cut: nn.Module, example: Any, names: list[str]) -> dict[str, Any]:
    """Milliseconds before and after in each runtime, taking turns."""
    times = {n: seconds([whole, cut], example, n, turns=60, least=1.0) for n in names}
    return {n: [1e3 * s for s in pair] for n, pair in times.items()}


def cell(model: nn.Module, example: Any, target: str, runtimes: list[str]) -> dict[str, Any]:
    """A plan by the size of weights, and what it comes to, exported anew."""
    start = time.process_time()
    plan = obc.plan(model, example, target=target, criterion="l2", rank="score/cost")
    taken = time.process_time() - start
    cut = obc.apply(copy.deepcopy(model), plan)
    assert plan.before is not None and plan.after is not None
    return {
        "macs": plan.before.macs / plan.after.macs,
        "ms": by_runtime(model, cut, example, runtimes),
        "notes": plan.notes,
        "CPU seconds of planning": taken,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runtime", default="onnxruntime")
    parser.add_argument("--speedup", type=float, default=1.5)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    runtimes = [
        name
        for name in ("torch", "onnxruntime", "openvino")
        if name == "torch" or importlib.util.find_spec(name)
    ]
    asked, rows = options.speedup, []
    path = RESULTS / "latency.json"
    results = json.loads(path.read_text())["results"] if path.exists() else {}
    for name in options.models:
        build, image = MODELS[name]
        torch.manual_seed(0)
        model, example = build().eval(), torch.randn(1, 3, image, image)
        found: dict[str, Any] = results.setdefault(name, {})
        for target in (f"latency[{options.runtime}]={asked:g}x", f"macs={asked:g}x"):
            if target not in found:
                found[target] = cell(model, example, target, runtimes)
                save("latency", {"asked": asked, "goal": GOAL, "threads": 1, "results": results})
            times, fewer = found[target]["ms"], found[target]["macs"]
            got = times[options.runtime][0] / times[options.runtime][1]
            milliseconds = [f"{a:.2f} → {b:.2f}" for a, b in times.values()]
            reached = "yes" if abs(got / asked - 1) <= GOAL else "no"
            rows.append((name, target, f"{got:.2f}x", reached, f"{fewer:.2f}x", *milliseconds))
            CONSOLE.print(rows[-1], found[target]["notes"])
    title = f"{asked:g}x asked in {options.runtime}, one thread; goal: within {GOAL:.0%}"
    heads = ("model", "target", "got", "reached", "MACs", *(f"{n}, ms" for n in runtimes))
    show(title, heads, rows)


if __name__ == "__main__":
    main()
