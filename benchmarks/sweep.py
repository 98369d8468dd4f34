"""Models that no test names: are they cut right, or refused by the trace, and how much is free?

A run that was cut short goes on where it stopped; words choose families by parts of their names,
and lines that are there already are kept. The whole of it is written to `docs/sweep.md` as well,
and what it comes to into the README.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import torch

from benchmarks._harness import RESULTS, commit, save, show, time_limit
from tests.sweep import SWEEP
from tests.sweep.families import Family
from tests.sweep.judge import Line, judge

PAGE, README = RESULTS.parents[1] / "docs" / "sweep.md", RESULTS.parents[1] / "README.md"
BEGIN, END = "<!-- sweep -->", "<!-- end of sweep -->"
SECONDS = 150  # of CPU time for one family, its cut and its judge included


def main(words: list[str]) -> None:
    torch.set_num_threads(1)
    path = RESULTS / "sweep.partial.json"
    done = json.loads(path.read_text()) if path.exists() else {}
    chosen = [f for f in SWEEP if not words or any(word in repr(f) for word in words)]
    for family in chosen:
        if repr(family) not in done:
            done[repr(family)] = {**asdict(limited(family)), "commit": commit()}
            path.write_text(json.dumps(done, indent=1))
            report([done[repr(family)]])
    report([done[repr(family)] for family in chosen])
    if not words:
        lines = [done[repr(family)] for family in chosen]
        save("sweep", {"lines": lines})
        for file, rows in ((PAGE, table(lines)), (README, [in_short(lines)])):
            file.write_text(page(file.read_text(encoding="utf-8"), rows), encoding="utf-8")
        path.unlink()


def page(text: str, rows: list[str]) -> str:
    """The page with these rows between its marks."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return "\n".join([f"{before}{BEGIN}", *rows, f"{END}{after}"])


def in_short(lines: list[dict[str, Any]]) -> str:
    """The README's sentence on the sweep."""
    right = sum(line["verdict"] == "right" for line in lines)
    half = sum(line["free"] >= 0.5 for line in lines)
    return (
        f"[The sweep](docs/sweep.md): {len(lines)} model families of transformers, timm, "
        "torchvision and ultralytics that no other test names, 30% of every site removed at "
        "random, each compared with its masked original by mathematics that is not obc's own: "
        f"{right} right; in {half} of them at least half of the channels are free to go."
    )


def table(lines: list[dict[str, Any]]) -> list[str]:
    """The rows of docs/sweep.md: what it comes to, and one line for each family."""
    right = sum(line["verdict"] == "right" for line in lines)
    free = [line["free"] for line in lines]
    slowest = max(lines, key=lambda line: float(line["seconds"]))
    rows = [
        f"{right} of {len(lines)} are right; {sum(f >= 0.5 for f in free)} have half of their "
        f"channels free or more, {sum(f > 0.99 for f in free)} all; the slowest trace is "
        f"{slowest['family']}'s, {slowest['seconds']:.1f} CPU seconds.",
        "",
        "| family | verdict | sites | free | seconds | most of what stays |",
        "| --- | --- | ---: | ---: | ---: | --- |",
    ]
    for line in lines:
        reason = line["frozen"].replace("|", "/")
        rows.append(
            f"| {line['family']} | {line['verdict']} | {line['sites']} | {line['free']:.0%} "
            f"| {line['seconds']:.1f} | {reason} |"
        )
    return rows


def limited(family: Family) -> Line:
    """The line of a family; an exception, or no end in sight, is what went wrong."""
    try:
        with time_limit(SECONDS):
            return judge(family)
    except Exception as error:
        return Line(repr(family), f"{type(error).__name__}: {error}", seconds=SECONDS)


def report(lines: list[dict[str, Any]]) -> None:
    columns = ("family", "verdict", "sites", "free", "seconds", "frozen")
    show("The sweep", columns, [[line[column] for column in columns] for line in lines])


if __name__ == "__main__":
    main(sys.argv[1:])
