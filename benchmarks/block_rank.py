"""Accuracy over MACs of the 2 x 2 of `block` and `rank`, beside Taylor and Hessian."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import _curves
from benchmarks._harness import CONSOLE, save

SETTINGS: dict[str, dict[str, Any]] = {
    "jacobian (paper)": {},
    "jacobian, score/cost": {"rank": "score/cost"},
    "jacobian, group block": {"block": "group"},
    "jacobian, group block, score/cost": {"block": "group", "rank": "score/cost"},
    "taylor": {"criterion": "taylor"},
    "taylor, score/cost": {"criterion": "taylor", "rank": "score/cost"},
    "hessian": {"criterion": "hessian"},
    "hessian, score/cost": {"criterion": "hessian", "rank": "score/cost"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=("digits", "fashion", "cifar"), default="digits")
    parser.add_argument("--folder", type=Path, help="where Fashion-MNIST or CIFAR-10 is")
    parser.add_argument("--weights", type=Path, help="ResNet-56 for CIFAR-10, safetensors")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--step", type=float, default=0.02)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--without", nargs="*", default=[], help="settings to leave out")
    parser.add_argument("--speedups", type=float, nargs="+", default=_curves.SPEEDUPS)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    load: dict[str, Callable[[int], _curves.Data]] = {
        "digits": _curves.digits,
        "fashion": lambda seed: _curves.fashion(seed, options.folder),
        "cifar": lambda seed: _curves.cifar(seed, options.folder),
    }
    chosen = {n: s for n, s in SETTINGS.items() if not any(w in n for w in options.without)}
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
    whole = []
    name = f"block_rank_{options.data}"
    title = f"Accuracy over MACs, {options.data}, {options.seeds} seeds, no tuning"
    for seed in range(options.seeds):
        data = load[options.data](seed)
        if options.data == "cifar":
            model = _curves.given(options.weights)
        else:
            model = _curves.trained(data, seed, options.epochs)
        whole.append(_curves.accuracy(model, data.test))
        batches = data.batches(64)
        for setting, own in chosen.items():
            own = {"rows": options.rows, "step": options.step, **own}
            found = _curves.curve(model, data, batches, own, options.speedups)
            results[setting].append(found)
            CONSOLE.print(seed, setting, found)
        _curves.table(title, results, options.speedups)
        save(name, {"before": whole, "speedups": options.speedups, "results": results})
    if options.figure:
        _curves.draw(options.figure, title, results, options.speedups)


if __name__ == "__main__":
    main()
