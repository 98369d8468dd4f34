"""A whole run to half the MACs on ResNet-56, against torch-pruning with a Jacobian it keeps."""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional

import obc
from benchmarks._harness import race, save, show
from benchmarks._peer import prune_by_jacobian
from obc.criteria.score import Scorer
from obc.models import resnet56
from obc.search.algorithm import Run


def loss(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


class Clock:
    """CPU seconds spent scoring, beside those of all steps; tracing beforehand is in neither."""

    def __init__(self) -> None:
        self.seconds = {"scoring": 0.0, "steps": 0.0}
        self.steps = 0

    def timed(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            start = time.process_time()
            try:
                return function(*args)
            finally:
                self.seconds[kind] += time.process_time() - start

        return run

    def run(self, *args: Any, **settings: Any) -> None:
        scoring = mock.patch.object(Scorer, "totals", self.timed("scoring", Scorer.totals))
        steps = mock.patch.object(Run, "plans", self.timed("steps", Run.plans))
        with scoring, steps:
            self.steps = len(obc.plan(*args, **settings).history)

    @property
    def beside(self) -> float:
        return 1 - self.seconds["scoring"] / self.seconds["steps"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--step", type=float, default=1 / 100)
    parser.add_argument("--carry", type=float, default=0.75)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = resnet56().eval()
    data = [
        (torch.randn(options.batch, 3, 32, 32), torch.randint(0, 10, (options.batch,)))
        for _ in range(5 * options.rows)
    ]
    example = torch.zeros(1, 3, 32, 32)
    settings: Any = {"target": "macs=2x", "rows": options.rows, "step": options.step}
    plain, carried, seen = Clock(), Clock(), {}

    def ours(clock: Clock, **extra: Any) -> None:
        clock.run(model, example, data, loss, **settings, **extra)

    def theirs() -> None:
        seen["peer"] = prune_by_jacobian(
            copy.deepcopy(model), example, data, loss, options.rows, options.step
        )

    times = race(
        {
            "torch-pruning": theirs,
            "obc": lambda: ours(plain),
            "obc, carry": lambda: ours(carried, carry=options.carry),
        },
        options.rounds,
        seconds=600,
    )
    best = {name: timing.best for name, timing in times.items()}
    rows = [
        ("obc, times as fast", best["torch-pruning"] / best["obc"], 1.4, True),
        ("obc with carry, times as fast", best["torch-pruning"] / best["obc, carry"], 4.0, True),
        ("beside scoring, share of the steps", plain.beside, 0.05, False),
        ("the same with carry", carried.beside, 0.05, False),
    ]
    show(
        f"ResNet-56 to 2x MACs, N = {options.rows}, p = {options.step:g}, batch {options.batch}",
        ("figure", "measured", "bar", "reached"),
        [
            (n, f"{v:.3g}", f"{'≥' if more else '≤'} {bar}", _reached(v, bar, more))
            for n, v, bar, more in rows
        ],
    )
    show(
        "The runs",
        ("run", "CPU seconds", "steps"),
        [
            ("torch-pruning", f"{best['torch-pruning']:.1f}", seen["peer"]),
            ("obc", f"{best['obc']:.1f}", plain.steps),
            ("obc, carry", f"{best['obc, carry']:.1f}", carried.steps),
        ],
    )
    save(
        "plan",
        {
            "rows": options.rows,
            "batch": options.batch,
            "step": options.step,
            "carry": options.carry,
            "seconds": best,
            "figures": [
                {"figure": n, "value": round(v, 3), "bar": b, "reached": _reached(v, b, m) == "yes"}
                for n, v, b, m in rows
            ],
        },
    )


def _reached(value: float, bar: float, more: bool) -> str:
    return "yes" if (value >= bar if more else value <= bar) else "no"


if __name__ == "__main__":
    main()
