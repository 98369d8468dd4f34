"""Planning from single samples and in larger steps: scoring time and accuracy beside N = 50.

Accuracies do not need the time that they are compared at: in eval mode samples do not see each
other, so the rows of a step are computed together, as means over parts of one large batch. What a
row costs, with and without single samples, is measured by itself, and a step of a network that has
shrunk counts as much less as its MACs have become fewer.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn

import obc
from benchmarks import _curves
from benchmarks._harness import CONSOLE, Cells, race, show, spread
from benchmarks._networks import Folders, network
from obc.criteria.jacobian import Jacobian
from obc.criteria.structure import Part
from obc.search.algorithm import Run
from obc.search.ranking import Chunk

GOAL = 15.0  # times less scoring than N = 50, p = 1/400
SPEEDUPS = (2.0, 4.0)
MOST = 700  # samples in one pass
# Samples in a row. Small rows are the hard case: the command line's have 128.
NETWORKS = {"digits": 14, "resnet20_padded": 8, "resnet56_padded": 8}


class Setting(NamedTuple):
    """N rows for each step: p of the channels, of the MACs, or of all scores that are left."""

    rows: int
    step: float
    expected: bool = False
    of: str = "channels"

    def __str__(self) -> str:
        kind = "expected, " if self.expected else ""
        share = f"1/{1 / self.step:.0f}" + ("" if self.of == "channels" else f" of {self.of}")
        return f"{kind}N = {self.rows}, p = {share}"


FIRST = Setting(50, 1 / 400)
SETTINGS = (
    FIRST,
    Setting(10, 1 / 100, expected=True),
    Setting(10, 1 / 50, expected=True),  # what the command line takes for images
    Setting(5, 1 / 50, expected=True),
    Setting(10, 1 / 25, expected=True),
    Setting(10, 1 / 50),
    Setting(10, 1 / 1000, expected=True, of="scores"),
    Setting(10, 1 / 25, expected=True, of="MACs"),
    Setting(10, 1 / 12, expected=True),
    Setting(10, 1 / 100, expected=True, of="scores"),
)
CAP = 1 / 10  # the most channels that may go in a step by scores


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


def by_scores(share: float) -> AbstractContextManager[Any]:
    """Steps that are long where scores are far apart: the lowest channels go as long as their
    scores come to less than a share of all that are left, and at most `CAP` of the channels."""

    def lowest(run: Run, ranking: Sequence[Chunk]) -> list[Chunk]:
        left = share * sum(sum(chunk.scores) for chunk in ranking)
        most = CAP * run.removable
        chosen: list[Chunk] = []
        for chunk in ranking:
            chosen.append(chunk)
            left -= sum(chunk.scores)
            most -= len(chunk.channels)
            if left <= 0 or most <= 0:
                break
        return chosen

    return mock.patch.object(Run, "_lowest", lowest)


def cell(
    model: nn.Module, data: _curves.Data, size: int, setting: Setting, folder: Path | None
) -> dict[str, Any]:
    """Accuracies after the cut and after recalibration, steps, and what they cost in rows."""
    together = max(
        n for n in range(1, setting.rows + 1) if not setting.rows % n and n * size <= MOST
    )
    paced = by_scores(setting.step) if setting.of == "scores" else nullcontext()
    with paced:
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
            pace="cost" if setting.of == "MACs" else "channels",
            resume=folder,
        )
    cut, recalibrated = [], []
    for plan in plans:
        pruned = obc.apply(copy.deepcopy(model), plan)
        cut.append(_curves.accuracy(pruned, data.test))
        obc.recalibrate(pruned, model, data.batches(64), samples=512)
        recalibrated.append(_curves.accuracy(pruned, data.test))
    last = plans[-1]
    assert last.before is not None
    macs = [last.before.macs, *(step.after.macs for step in last.history)]
    rows = setting.rows * sum(before / macs[0] for before, _ in pairwise(macs))
    steps = len(last.history)
    return {"cut": cut, "recalibrated": recalibrated, "steps": steps, "rows of the whole": rows}


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


def rounded(model: nn.Module, data: _curves.Data) -> dict[str, float]:
    """Ten rows of 16 in bfloat16 beside the same in float32, and beside ten others."""
    half = copy.deepcopy(model).bfloat16()
    example, batches = data.test[0][:1], data.batches(16)
    sites, narrow = obc.trace(model, example), obc.trace(half, example.bfloat16())
    short = [(x.bfloat16(), y) for x, y in batches[:10]]

    def scores(net: nn.Module, of: obc.Sites, rows: list[_curves.Batch]) -> Tensor:
        by_site = obc.score(net, of, rows, _curves.loss, block="group")
        return torch.cat([by_site[name].flatten() for name in sites.names])

    first = scores(model, sites, batches[:10])
    found: dict[str, float] = {}
    for name, other in (
        ("bfloat16", scores(half, narrow, short)),
        ("other rows", scores(model, sites, batches[10:20])),
    ):
        ranks = torch.stack([values.argsort().argsort().double() for values in (first, other)])
        lowest = [set(values.argsort()[: len(values) // 10].tolist()) for values in (first, other)]
        found[f"{name}, rank correlation"] = float(torch.corrcoef(ranks)[0, 1])
        found[f"{name}, lowest tenth in common"] = len(lowest[0] & lowest[1]) / len(lowest[0])
    times = race(
        {
            "float32": lambda: scores(model, sites, batches[:3]),
            "bfloat16": lambda: scores(half, narrow, short[:3]),
        },
        rounds=3,
    )
    return {**found, "bfloat16, time": times["bfloat16"].best / times["float32"].best}


def table(title: str, cells: dict[str, dict[str, Any]], dearer: float) -> None:
    """Accuracies, gains over N = 50 seed by seed, and how much less is scored."""
    lines = []
    for setting in SETTINGS:
        by_seed = {
            key.split(": ")[0]: c for key, c in cells.items() if key.endswith(f": {setting}")
        }
        pairs = [
            (c, cells[f"{s}: {FIRST}"]) for s, c in by_seed.items() if f"{s}: {FIRST}" in cells
        ]
        if not pairs:
            continue
        columns = []
        for kind in ("cut", "recalibrated"):
            columns += [spread([c[kind][i] for c, _ in pairs]) for i in range(len(SPEEDUPS))]
            gains = [statistics.mean(c[kind]) - statistics.mean(f[kind]) for c, f in pairs]
            columns.append("" if setting is FIRST else spread(gains))
        rows, first = (sum(p[i]["rows of the whole"] for p in pairs) for i in (0, 1))
        less = first / rows / (dearer if setting.expected else 1)
        steps = statistics.mean(c["steps"] for c, _ in pairs)
        lines.append((str(setting), *columns, f"{steps:.0f}", f"{less:.1f}", len(pairs)))
    kinds = [
        f"{k} {s}" for k in ("cut", "recal.") for s in (*(f"{x:g}x" for x in SPEEDUPS), "gain")
    ]
    show(title, ("setting", *kinds, "steps", f"× less (goal {GOAL:g})", "seeds"), lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, default="digits")
    parser.add_argument("--cifar", type=Path, help="where CIFAR-10 is")
    parser.add_argument("--weights", type=Path, help="a folder of weights for CIFAR-10")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--settings", type=int, nargs="+", default=range(len(SETTINGS)))
    parser.add_argument("--work", type=Path, help="a folder, to go on after an interruption")
    parser.add_argument("--bfloat16", action="store_true", help="what rounding does to scores")
    options = parser.parse_args()
    torch.set_num_threads(1)
    name, size = options.network, NETWORKS[options.network]
    folders = Folders(options.cifar, None, None, options.weights, None)
    cells = Cells(f"samples_{name}", {"samples in a row": size, "goal": GOAL})
    if options.bfloat16:
        cells.add("bfloat16", rounded(*network(name, 0, folders, images=3200, test=1000)))
        CONSOLE.print(cells.results["bfloat16"])
    for seed in options.seeds:
        missing = [
            s for i in options.settings if f"{seed}: {(s := SETTINGS[i])}" not in cells.results
        ]
        if not missing:
            continue
        model, data = network(name, seed, folders, images=3200, test=1000)
        if "row" not in cells.results:
            cells.add("row", {"expected ÷ plain": price(model, data, size)})
        for setting in missing:
            folder = (
                options.work / f"{name} {seed} {setting}".replace("/", "-")
                if options.work
                else None
            )
            result = cell(model, data, size, setting, folder)
            cells.add(f"{seed}: {setting}", result)
            CONSOLE.print(seed, setting, result)
    dearer = cells.results["row"]["expected ÷ plain"]
    table(f"Planning from samples, {name}, rows of {size}", cells.results, dearer)


if __name__ == "__main__":
    main()
