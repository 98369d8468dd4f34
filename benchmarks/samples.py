"""Planning from single samples and in larger steps: scoring time and accuracy beside N = 50.

Accuracies do not need the time that they are compared at: in eval mode samples do not see each
other, so the rows of a step are computed together, as means over parts of one large batch. What a
row costs, with and without single samples, is measured by itself.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import obc
from benchmarks import _curves
from benchmarks._harness import CONSOLE, RESULTS, race, save, show
from obc.criteria.jacobian import Jacobian
from obc.criteria.structure import Part
from obc.models import resnet20

GOAL = 15.0  # times less scoring than N = 50, p = 1/400
SPEEDUPS = (2.0, 4.0)
MOST = 700  # samples in one pass


class Setting(NamedTuple):
    """N rows for each step, p of the channels."""

    rows: int
    step: float
    expected: bool = False

    def __str__(self) -> str:
        kind = "expected, " if self.expected else ""
        return f"{kind}N = {self.rows}, p = 1/{1 / self.step:.0f}"


FIRST = Setting(50, 1 / 400)
SETTINGS = (
    FIRST,
    Setting(10, 1 / 100, expected=True),
    Setting(10, 1 / 50, expected=True),
    Setting(5, 1 / 100, expected=True),
    Setting(10, 1 / 100),
)


class Rows(Jacobian):
    """The Jacobian Criterion of groups as one block, over rows of `size` samples each."""

    def __init__(self, size: int, expected: bool) -> None:
        super().__init__(block="group", per_sample=not expected, expected=expected)
        self.size = size

    def site(self, parts: list[tuple[Part, Tensor, Tensor]]) -> Tensor:
        if self.expected:
            return super().site(parts)
        total = torch.stack([e.sum(2) for _, _, e in parts]).sum(0)
        return total.unflatten(0, (-1, self.size)).mean(1).square().sum(0, keepdim=True)

    def scores(self, sums: Tensor, rows: int) -> Tensor:
        return super().scores(sums, round(float(sums[0, 0]) / self.size) if self.expected else rows)


def cell(
    model: nn.Module, data: _curves.Data, size: int, setting: Setting, folder: Path | None
) -> dict[str, Any]:
    """Accuracies after the cut and after recalibration, and the number of steps."""
    together = max(
        n for n in range(1, setting.rows + 1) if not setting.rows % n and n * size <= MOST
    )
    plans = obc.plan(
        model,
        data.test[0][:1],
        data.batches(size * together),
        _curves.loss,
        target=[f"macs={s:g}x" for s in SPEEDUPS],
        criterion=Rows(size, setting.expected),
        rank="score/cost",
        rows=setting.rows // together,
        step=setting.step,
        resume=folder,
    )
    cut, recalibrated = [], []
    for plan in plans:
        pruned = obc.apply(copy.deepcopy(model), plan)
        cut.append(_curves.accuracy(pruned, data.test))
        obc.recalibrate(pruned, model, data.batches(64), samples=512)
        recalibrated.append(_curves.accuracy(pruned, data.test))
    return {"cut": cut, "recalibrated": recalibrated, "steps": len(plans[-1].history)}


def digits(data: _curves.Data, seed: int, folder: Path | None) -> nn.Module:
    """A ResNet-20 trained on the digits, kept in a folder if there is one."""
    path = folder / f"{seed}.safetensors" if folder else None
    if path is not None and path.exists():
        model = resnet20(in_channels=1, width=8)
        model.load_state_dict(load_file(path))
        return model.eval()
    model = _curves.trained(data, seed, 8)
    if path is not None:
        save_file(model.state_dict(), path)
    return model


def price(model: nn.Module, data: _curves.Data, size: int) -> float:
    """What a row costs from single samples, over one of a whole batch; best of interleaved runs."""
    batches = data.batches(size)[:3]
    sites = obc.trace(model, data.test[0][:1])

    def scoring(expected: bool) -> Any:
        return lambda: obc.score(
            model, sites, batches, _curves.loss, block="group", expected=expected
        )

    times = race({"rows": scoring(False), "expected": scoring(True)}, rounds=8)
    return times["expected"].best / times["rows"].best


def _spread(values: list[float]) -> str:
    off = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.1f} ± {off:.1f}"


def table(title: str, results: dict[str, dict[str, Any]], dearer: float) -> None:
    """Accuracies, gains over N = 50 network by network, and how much less is scored."""
    rows, first = [], results.get(str(FIRST), {})
    for setting in SETTINGS:
        cells = results.get(str(setting), {})
        seeds = [s for s in cells if s in first]
        if not seeds:
            continue
        columns = []
        for kind in ("cut", "recalibrated"):
            columns += [_spread([cells[s][kind][i] for s in seeds]) for i in range(len(SPEEDUPS))]
            gains = [
                statistics.mean(cells[s][kind]) - statistics.mean(first[s][kind]) for s in seeds
            ]
            columns.append(_spread(gains))
        share = sum(first[s]["steps"] for s in seeds) / sum(cells[s]["steps"] for s in seeds)
        ratio = share * FIRST.rows / setting.rows / (dearer if setting.expected else 1)
        rows.append((str(setting), *columns, f"{ratio:.1f}", len(seeds)))
    heads = [
        f"{k} {s}" for k in ("cut", "recal.") for s in (*(f"{x:g}x" for x in SPEEDUPS), "gain")
    ]
    show(title, ("setting", *heads, f"× less (goal {GOAL:g})", "seeds"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=("digits", "cifar"), default="digits")
    parser.add_argument("--folder", type=Path, help="where CIFAR-10 is")
    parser.add_argument("--weights", type=Path, help="ResNet-56 for CIFAR-10, safetensors")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--batch", type=int, default=14)
    parser.add_argument("--work", type=Path, help="a folder, to go on after an interruption")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cifar = options.data == "cifar"
    name = f"samples_{options.data}"
    path = RESULTS / f"{name}.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    results, dearer = kept.get("results", {}), kept.get("row, expected ÷ plain")
    for seed in options.seeds:
        data = _curves.cifar(seed, options.folder, 3200, 1000) if cifar else _curves.digits(seed)
        model: nn.Module | None = None
        for setting in SETTINGS:
            if str(seed) in results.get(str(setting), {}):
                continue
            if model is None:
                model = (
                    _curves.given(options.weights) if cifar else digits(data, seed, options.work)
                )
            dearer = dearer or price(model, data, options.batch)
            folder = options.work / f"{seed} {setting}".replace("/", "-") if options.work else None
            found = cell(model, data, options.batch, setting, folder)
            results.setdefault(str(setting), {})[str(seed)] = found
            CONSOLE.print(seed, setting, found)
            facts = {"batch": options.batch, "goal": GOAL, "row, expected ÷ plain": dearer}
            save(name, {**facts, "results": results})
    table(f"Planning from samples, {options.data}, batch {options.batch}", results, dearer)


if __name__ == "__main__":
    main()
