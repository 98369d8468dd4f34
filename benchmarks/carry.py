"""Whether evidence carried from step to step is as good as fresh rows, and what it saves."""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch

from benchmarks import _curves
from benchmarks._harness import CONSOLE, save


def settings(rows: int, step: float) -> dict[str, dict[str, Any]]:
    """All rows fresh, carried, fresh but as few as carrying draws, and fresh in longer steps."""
    few, least = round(rows / 4), round(rows / 10)
    return {
        f"{rows} fresh rows (paper)": {"rows": rows},
        f"carry=0.75: {few} fresh": {"rows": rows, "carry": 0.75},
        f"carry=0.9: {least} fresh": {"rows": rows, "carry": 0.9},
        f"{few} fresh rows": {"rows": few},
        f"{least} fresh rows": {"rows": least},
        f"{rows} fresh rows, steps 4 times as long": {"rows": rows, "step": 4 * step},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--batch", type=int, default=28)
    parser.add_argument("--step", type=float, default=1 / 100)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--without", nargs="*", default=[], help="settings to leave out")
    parser.add_argument("--speedups", type=float, nargs="+", default=_curves.SPEEDUPS)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--data", choices=("digits", "cifar"), default="digits")
    parser.add_argument("--folder", type=Path, help="where CIFAR-10 is")
    parser.add_argument("--weights", type=Path, help="ResNet-56 for CIFAR-10, safetensors")
    options = parser.parse_args()
    torch.set_num_threads(1)
    speedups, every = options.speedups, settings(options.rows, options.step)
    chosen = {n: s for n, s in every.items() if not any(w in n for w in options.without)}
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
    title = f"Carried evidence, {options.data}, {options.seeds} seeds, step {options.step:g}"
    for seed in range(options.seeds):
        if options.data == "cifar":
            data = _curves.cifar(seed, options.folder)
            model = _curves.given(options.weights)
        else:
            data = _curves.digits(seed)
            model = _curves.trained(data, seed, options.epochs)
        batches = data.batches(options.batch)
        for name, own in chosen.items():
            found = _curves.curve(model, data, batches, {"step": options.step, **own}, speedups)
            results[name].append(found)
            CONSOLE.print(seed, name, found)
        _curves.table(title, results, speedups)
        within = compared(results) if seed else {}
        name = "carry" if options.data == "digits" else f"carry_{options.data}"
        save(name, {"speedups": speedups, "results": results, "deviations off": within})
    CONSOLE.print("largest distance from the paper's curve, in its standard deviations:", within)
    if options.figure:
        _curves.draw(options.figure, title, results, speedups)


def compared(results: dict[str, list[dict[str, Any]]]) -> dict[str, list[float]]:
    """At each speed-up, how many standard deviations a setting's mean is from the first one's."""
    first, *others = results
    base = list(zip(*(r["accuracy"] for r in results[first]), strict=True))
    found = {}
    for name in others:
        own = list(zip(*(r["accuracy"] for r in results[name]), strict=True))
        found[name] = [
            round((statistics.mean(a) - statistics.mean(b)) / max(statistics.stdev(b), 1e-9), 2)
            for a, b in zip(own, base, strict=True)
        ]
    return found


if __name__ == "__main__":
    main()
