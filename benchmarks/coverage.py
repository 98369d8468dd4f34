"""Which models prune: 30% of everything at random, by obc and by torch-pruning, judged alike."""

from __future__ import annotations

import argparse
import copy
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

import obc
from benchmarks import _peer
from benchmarks._harness import CONSOLE, save, show, time_limit
from benchmarks._judge import VERDICTS, first_line, judge, output_layers, removed
from obc.running.forward import forward
from obc.tracing.tracer import Tracing
from tests.cases import CASES, Case
from tests.vision import installed

RATIO = 0.3
PATIENCE = 20.0  # CPU seconds; what ends at all ends within three
FAMILIES = {"hand": "written by hand", "hf": "transformers", "torchvision": "torchvision"}
PACKAGES = {"hf": "transformers", "torchvision": "torchvision"}
LIBRARIES = ("obc", "torch-pruning")


@dataclass
class Outcome:
    """What one library made of one model."""

    verdict: str
    reason: str = ""
    removed: float = 0.0  # share of the parameters
    counts: dict[str, int] = field(default_factory=dict)


def ours(tracing: Tracing) -> Outcome:
    """Remove 30% of every site at random, verify and judge."""
    model, example, sites = tracing.model, tracing.example, tracing.sites
    counts = {
        "sites": len(sites),
        "channels": sum(s.size for s in sites),
        "frozen": sum(f.size for f in sites.frozen if f.reason != "model output"),
    }
    generator = torch.Generator().manual_seed(0)
    kept = {}
    for site in sites:
        left = min(site.size - 1, round((1 - RATIO) * site.size))
        kept[site.name] = torch.randperm(site.size, generator=generator)[:left].tolist()
    plan = obc.Plan.from_kept(sites, kept)
    pruned = copy.deepcopy(model)
    try:
        obc.apply(pruned, plan, example=example)
    except obc.ObcError as error:
        return Outcome("refused", first_line(error), counts=counts)
    except Exception as error:
        return Outcome("crash", first_line(error), counts=counts)
    try:
        obc.verify(model, pruned, plan, example)
    except obc.ObcError as error:
        return Outcome("silently wrong", first_line(error), removed(model, pruned), counts)
    return Outcome(*judge(tracing, pruned), removed(model, pruned), counts)


def theirs(tracing: Tracing) -> Outcome:
    """Remove 30% of every group with default settings, run the result, and judge it."""
    model, example = tracing.model, tracing.example
    pruned = copy.deepcopy(model)
    ignored = [pruned.get_submodule(n) for n in output_layers(tracing, _peer.ROOTS)]
    try:
        with time_limit(PATIENCE):
            _peer.prune(pruned, example, ignored, RATIO)
    except TimeoutError as error:
        return Outcome("no end", first_line(error))
    except Exception as error:
        return Outcome("crash", f"while pruning: {first_line(error)}")
    try:
        forward(pruned, example)
    except Exception as error:
        return Outcome("crash", f"when run: {first_line(error)}")
    return Outcome(*judge(tracing, pruned), removed(model, pruned))


def both(case: Case) -> dict[str, Any]:
    """Both libraries on one model; its trace also says what torch-pruning's user would."""
    tracing = Tracing(case.model(), case.example())
    results = {"obc": ours(tracing), "torch-pruning": theirs(tracing)}
    return {"model": case.name, "tags": sorted(case.tags), **results}


def summary(found: Iterable[dict[str, Any]], families: Iterable[str]) -> dict[str, Any]:
    """How often each verdict was given, by family and library."""
    return {
        family: {
            who: Counter(f[who].verdict for f in found if family in f["tags"]) for who in LIBRARIES
        }
        for family in families
    }


def line(result: dict[str, Any]) -> str:
    """One model, while the others are still to come."""
    us, them = (result[who] for who in LIBRARIES)
    counts = ", ".join(f"{n} {what}" for what, n in us.counts.items())
    return (
        f"{result['model']}: {counts}; obc {us.verdict}, {100 * us.removed:.0f}% gone; "
        f"torch-pruning {them.verdict}, {100 * them.removed:.0f}% gone"
    )


def report(found: list[dict[str, Any]], families: list[str]) -> None:
    """How often each verdict was given, and why wherever obc is not right."""
    counts = summary(found, families)
    seen = [v for v in VERDICTS if any(c[v] for pair in counts.values() for c in pair.values())]
    show(
        f"{100 * RATIO:.0f}% of everything removed at random, against the masked original",
        ("models", "library", *seen),
        [
            (FAMILIES[family], who, *(c[v] for v in seen))
            for family, pair in counts.items()
            for who, c in pair.items()
        ],
    )
    for f in found:
        if f["obc"].verdict != "right":
            CONSOLE.print(f"{f['model']}: obc {f['obc'].verdict} {f['obc'].reason}", markup=False)


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__)
    options.add_argument("--quick", action="store_true", help="leave torchvision's models out")
    options.add_argument("--only", default="", help="models whose name contains this; no file")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    wanted = [f for f in FAMILIES if installed(PACKAGES.get(f, "torch"))]
    if chosen.quick:
        wanted = [f for f in wanted if f != "torchvision"]
    found = []
    for case in CASES:
        if case.tags.isdisjoint(wanted) or chosen.only not in case.name:
            continue
        found.append(both(case))
        CONSOLE.print(line(found[-1]), markup=False, highlight=False)
    report(found, wanted)
    if not chosen.only:
        save("coverage", {"ratio": RATIO, "summary": summary(found, wanted), "models": found})


if __name__ == "__main__":
    main()
