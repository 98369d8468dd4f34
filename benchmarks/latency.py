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
from obc.running import onnx
from obc.running.runtimes import eager, onnx_run, openvino_run
from obc.running.timing import race, relative

GOAL = 0.05  # off the speed-up that was asked for
MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "ResNet-56": (resnet56, 32),
    "MobileNetV2": (mobilenet_v2, 96),
    "ViT": (lambda: vit_small(image=64, patch=8, dim=192, depth=6, heads=3), 64),
}


class Whole:
    """A model before pruning, exported once for all that is held against it."""

    def __init__(self, model: nn.Module, example: Any) -> None:
        self.model, self.example = model, example
        self.graph = onnx.of_model(model, example)

    @torch.no_grad()
    def milliseconds(self, cut: nn.Module) -> dict[str, list[float]]:
        """Before and after in each runtime: the fastest of many runs, and what the cut takes
        relative to it as they take turns."""
        graphs, example = (self.graph, onnx.of_model(cut, self.example)), self.example
        runs = {
            "torch": [eager(m.eval(), example) for m in (self.model, cut)],
            "onnxruntime": [onnx_run(graph, example) for graph in graphs],
        }
        if importlib.util.find_spec("openvino"):
            runs["openvino"] = [openvino_run(graph, example) for graph in graphs]
        times = {name: race(pair, turns=200, seconds=1.0) for name, pair in runs.items()}
        return {
            name: [1e3 * min(whole), 1e3 * min(whole) * relative(small, to=whole)]
            for name, (whole, small) in times.items()
        }


def cell(whole: Whole, target: str) -> dict[str, Any]:
    """A plan by the size of weights, and what it comes to, exported anew."""
    start, model = time.process_time(), whole.model
    settings: dict[str, Any] = {"criterion": "l2", "rank": "score/cost", "step": 0.02}
    plan = obc.plan(model, whole.example, target=target, **settings)
    taken = time.process_time() - start
    cut = obc.apply(copy.deepcopy(model), plan)
    assert plan.before is not None and plan.after is not None
    return {
        "macs": plan.before.macs / plan.after.macs,
        "ms": whole.milliseconds(cut),
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
    asked, rows = options.speedup, []
    path = RESULTS / "latency.json"
    results = json.loads(path.read_text())["results"] if path.exists() else {}
    for name in options.models:
        build, image = MODELS[name]
        torch.manual_seed(0)
        model, example = build().eval(), torch.randn(1, 3, image, image)
        found: dict[str, Any] = results.setdefault(name, {})
        whole: Whole | None = None
        for target in (f"latency[{options.runtime}]={asked:g}x", f"macs={asked:g}x"):
            if target not in found:
                whole = whole or Whole(model, example)
                found[target] = cell(whole, target)
                save("latency", {"asked": asked, "goal": GOAL, "threads": 1, "results": results})
            times, fewer = found[target]["ms"], found[target]["macs"]
            got = times[options.runtime][0] / times[options.runtime][1]
            milliseconds = [f"{a:.2f} → {b:.2f}" for a, b in times.values()]
            reached = "yes" if abs(got / asked - 1) <= GOAL else "no"
            rows.append((name, target, f"{got:.2f}x", reached, f"{fewer:.2f}x", *milliseconds))
            CONSOLE.print(rows[-1], found[target]["notes"])
    title = f"{asked:g}x asked in {options.runtime}, one thread; goal: within {GOAL:.0%}"
    heads = ("model", "target", "got", "reached", "MACs", *(f"{n}, ms" for n in times))
    show(title, heads, rows)


if __name__ == "__main__":
    main()
