"""The committed cells of the study, by variant, and their means over the seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks._harness import RESULTS

Runs = dict[str, list[dict[str, Any]]]


def results(name: str) -> dict[str, Any]:
    """What a study has so far; nothing, if it was not begun."""
    path = RESULTS / f"study_{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def by_variant(name: str) -> Runs:
    """The cells of each variant, one for each seed."""
    runs: Runs = {}
    for key, cell in results(name).get("cells", {}).items():
        runs.setdefault(key.rsplit("|", 1)[0], []).append(cell)
    return runs


def values(runs: Sequence[dict[str, Any]], speedup: float, which: str) -> list[float]:
    """Of each seed that has it, one number at a speed-up: "cut", "recalibrated", "channels", …"""
    points = [p for run in runs for p in run["points"] if p["speedup"] == speedup]
    return [p[which] for p in points if which in p]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
