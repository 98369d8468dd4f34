"""Perplexity of a decoder without tuning: criteria, shares of its blocks, cut and recalibrated.

Each cell is one criterion, one way of widths and one draw of calibration rows: a planning run over
all shares, and for each of them the perplexity cut and recalibrated. What the result file has is
not run again, so a run that was stopped goes on:

    python -m benchmarks.language MODEL --train valid.txt --test test.txt --windows 16
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch

import obc
from benchmarks._harness import CONSOLE, RESULTS, save, show
from obc.data.tokens import read_text
from obc.models import resolve
from obc.tasks import Language

CRITERIA = ("jacobian", "l1", "random", "taylor", "hessian")
SHARES = (0.1, 0.2, 0.3)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="a plain folder of Hugging Face")
    parser.add_argument("--train", type=Path, required=True, help="a text to calibrate on")
    parser.add_argument("--test", type=Path, required=True, help="a text to evaluate on")
    parser.add_argument("--join", default="blank", help="how lines of both are joined")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--windows", type=int, help="evaluate on so many; all by default")
    parser.add_argument("--criteria", nargs="+", default=CRITERIA)
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES)
    parser.add_argument("--draws", type=int, default=1, help="of calibration rows")
    parser.add_argument("--uniform", action="store_true", help="one width over layers")
    parser.add_argument("--rows", type=int, default=32, help="of 256 tokens, for each scoring")
    parser.add_argument("--step", type=float, default=0.1, help="share of the blocks' parameters")
    parser.add_argument("--samples", type=int, default=64, help="rows to recalibrate on")
    return parser.parse_args()


class Table:
    """The result file: points by criterion, widths, draw and share."""

    def __init__(self, protocol: dict[str, Any]) -> None:
        path = RESULTS / "language.json"
        old = json.loads(path.read_text()) if path.is_file() else {}
        same = old.get("protocol") == protocol
        self.protocol, self.points = protocol, dict(old.get("points", {})) if same else {}

    def add(self, key: str, point: dict[str, Any]) -> None:
        self.points[key] = point
        save("language", {"protocol": self.protocol, "points": self.points})

    def show(self) -> None:
        whole = self.points["whole"]["loss"]
        rows = []
        for key, p in self.points.items():
            if "recalibrated" in p:
                cut, fitted = p["cut"]["loss"] - whole, p["recalibrated"]["loss"] - whole
                figures = (p["cut"]["perplexity"], p["recalibrated"]["perplexity"], fitted / cut)
                rows.append((key, *(f"{x:.2f}" for x in figures), f"{p['seconds']:.0f}"))
        CONSOLE.print(
            f"{self.protocol['evaluation']}; whole {self.points['whole']['perplexity']:.2f}"
        )
        columns = ("criterion, widths, draw, share", "cut", "recalibrated", "excess", "seconds")
        show(
            "perplexity without tuning; excess: of log-perplexity, recalibrated ÷ cut",
            columns,
            rows,
        )


def measured(task: Language, model: Any) -> dict[str, float]:
    values = task.evaluate(model).named()
    return {name: value for name, value in values.items() if math.isfinite(value)}


def cell(table: Table, task: Language, model: Any, name: str, draw: int, options: Any) -> None:
    """One planning run, and its perplexities."""
    widths = "uniform" if options.uniform else "free"
    keys = {share: f"{name}, {widths}, {draw}, {share:.0%}" for share in options.shares}
    if all(key in table.points for key in keys.values()):
        return
    start = time.process_time()
    plans = obc.plan(
        model,
        task=task,
        batches=task.calibration(1),
        target=[obc.Params(keep=1 - share, part="blocks") for share in keys],
        criterion=name,
        rows=options.rows,
        step=options.step,
        pace="cost",
        sites=("ffn", "heads"),
        uniform=options.uniform,
        seed=draw,
    )
    planning = (time.process_time() - start) / len(keys)
    torch.manual_seed(draw)
    batches = list(islice(task.calibration(4), -(-options.samples // 4)))
    for plan, key in zip(plans, keys.values(), strict=True):
        if key in table.points:
            continue
        small = obc.apply(copy.deepcopy(model), plan)
        cut, start = measured(task, small), time.process_time()
        account = obc.recalibrate(small, model, batches, samples=options.samples, seed=draw)
        seconds = time.process_time() - start
        point = {
            "cut": cut,
            "recalibrated": measured(task, small),
            "seconds": planning + seconds,
            "recalibration": {"seconds": seconds, "before": account.before, "after": account.after},
            "notes": plan.notes,
        }
        table.add(key, point)


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    train, test = (read_text(path, options.join) for path in (options.train, options.test))
    name = f"{options.test.parent.name}/{options.test.name}"
    task = Language(
        train,
        test,
        tokenizer=options.model,
        length=options.length,
        windows=options.windows,
        name=name,
        joining="lines joined by blank lines" if options.join else "as it is",
    )
    protocol = {
        "evaluation": task.protocol,
        "calibration": f"{options.rows} rows of 256 tokens of {options.train.name} for each step, "
        f"{options.samples} to recalibrate; steps of {options.step:.0%} of the blocks' parameters",
        "model": options.model.name,
    }
    table = Table(protocol)
    model = resolve(f"hf:{options.model}", pretrained=True).eval()
    if "whole" not in table.points:
        table.add("whole", measured(task, model))
    for draw in range(options.draws):
        for criterion in options.criteria:
            cell(table, task, model, criterion, draw, options)
    table.show()


if __name__ == "__main__":
    main()
