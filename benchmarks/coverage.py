"""Which models prune: 30% of everything at random, by obc and by torch-pruning, judged alike.

The judge is the masking oracle: the original model, in float64, with the channels that the
library itself chose masked. torch-pruning's choice is read off its result, by finding each value
that is left in the original parameters, so its own notes of indices need not be trusted.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import obc
from benchmarks import _peer
from benchmarks._harness import CONSOLE, save, show
from obc.surgery.verify import _Masked, difference
from obc.trace.layers import unchanged
from obc.trace.solve import base_classes
from obc.trace.tracer import Tracing, forward, outputs
from tests.cases import CASES, Case
from tests.vision import installed

RATIO = 0.3
FAMILIES = {"hand": "written by hand", "hf": "transformers", "torchvision": "torchvision"}
PACKAGES = {"hf": "transformers", "torchvision": "torchvision"}
# From best to worst: a crash is noticed, a wrong model is not.
VERDICTS = ("right", "nothing pruned", "refused", "not judged", "crash", "other shape", "wrong")


@dataclass
class Outcome:
    """What one library made of one model."""

    verdict: str
    removed: float = 0.0  # share of the parameters
    reason: str = ""
    counts: dict[str, int] = field(default_factory=dict)


def ours(model: nn.Module, example: Any) -> Outcome:
    """Trace, remove 30% of every site at random, and verify."""
    try:
        sites = obc.trace(model, example)
    except Exception as error:
        return Outcome("crash", reason=_first_line(error))
    counts = {
        "sites": len(sites),
        "channels": sum(s.size for s in sites),
        "frozen": sum(f.size for f in sites.frozen if f.reason != "model output"),
    }
    if not len(sites):
        return Outcome("nothing pruned", counts=counts)
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
        return Outcome("refused", reason=_first_line(error), counts=counts)
    except Exception as error:
        return Outcome("crash", reason=_first_line(error), counts=counts)
    try:
        obc.verify(model, pruned, plan, example)
    except Exception as error:
        return Outcome("wrong", _removed(model, pruned), _first_line(error), counts)
    return Outcome("right", _removed(model, pruned), counts=counts)


def theirs(model: nn.Module, example: Any) -> Outcome:
    """Remove 30% of every group with default settings, run the result, and judge it."""
    try:
        tracing: Tracing | None = Tracing(model, example)
    except Exception:
        tracing = None
    pruned = copy.deepcopy(model)
    ignored = [pruned.get_submodule(n) for n in _output_layers(model, tracing)]
    before = outputs(forward(model, example))
    try:
        _peer.prune(pruned, example, ignored, RATIO)
        after = outputs(forward(pruned, example))
    except Exception as error:
        return Outcome("crash", reason=_first_line(error))
    share = _removed(model, pruned)
    if [t.shape for t in before] != [t.shape for t in after]:
        return Outcome("other shape", share, f"{[tuple(t.shape) for t in after]}")
    if not share:
        return Outcome("nothing pruned")
    if tracing is None:
        return Outcome("not judged", share, "obc cannot trace it, and obc's masks are the judge")
    try:
        difference(_masked_outputs(tracing, _kept(model, pruned)), after)
    except Exception as error:
        return Outcome("wrong", share, _first_line(error))
    return Outcome("right", share)


def _output_layers(model: nn.Module, tracing: Tracing | None) -> list[str]:
    """Layers that put out what the model puts out: torch-pruning's user has to name them."""
    if tracing is None:
        return [[n for n, m in model.named_modules() if isinstance(m, tuple(_peer.ROOTS))][-1]]
    names = dict(model.named_modules())
    frozen = (f.layer for f in tracing.sites.frozen if f.reason == "model output")
    return [name for name in frozen if name in names]


def _kept(before: nn.Module, after: nn.Module) -> dict[tuple[str, int], Tensor]:
    """Which positions of each parameter dimension are left, recognised by their values."""
    small = dict(after.named_parameters(remove_duplicate=False))
    left = {}
    for name, full in before.named_parameters(remove_duplicate=False):
        part = small[name].detach()
        if part.shape == full.shape:
            continue
        values, order = full.detach().reshape(-1).sort()
        found = torch.searchsorted(values, part.reshape(-1)).clamp_max(values.numel() - 1)
        if not torch.equal(values[found], part.reshape(-1)):
            raise ValueError(f"'{name}' holds values that the original does not")
        for dim, at in enumerate(torch.unravel_index(order[found].view(part.shape), full.shape)):
            rows = at.movedim(dim, 0).flatten(1)
            if not torch.equal(rows, rows[:, :1].expand_as(rows)):
                raise ValueError(f"'{name}' is not a slice of the original")
            left[name, dim] = rows[:, 0]
    return left


def _masked_outputs(tracing: Tracing, kept: Mapping[tuple[str, int], Tensor]) -> list[Tensor]:
    """What the original puts out when it does not read what these slices leave out."""
    base = base_classes(tracing.flow.ledger)
    gone = torch.zeros(tracing.flow.ledger.size, dtype=torch.bool)
    for leaf in tracing.flow.leaves.values():
        for dim, ids in enumerate(leaf.dims):
            index = kept.get((leaf.name, dim))
            if ids is not None and index is not None:
                mask = torch.ones(len(ids), dtype=torch.bool)
                mask[index] = False
                gone[base[ids[mask]]] = True
    with unchanged(tracing.model):
        return outputs(tracing.run(_Masked(tracing.model, tracing, gone[base])))


def _removed(before: nn.Module, after: nn.Module) -> float:
    full, left = (sum(p.numel() for p in m.parameters()) for m in (before, after))
    return 1 - left / full


def _first_line(error: Exception) -> str:
    text = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {text}"[:200]


def judge(case: Case) -> dict[str, Any]:
    """Both libraries on one model."""
    model, example = case.model(), case.example()
    results = {"obc": ours(model, example), "torch-pruning": theirs(model, example)}
    return {"model": case.name, "tags": sorted(case.tags), **results}


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__)
    options.add_argument("--quick", action="store_true", help="leave torchvision's models out")
    options.add_argument("--all", action="store_true", help="list every model")
    options.add_argument("--only", default="", help="models whose name contains this; no file")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    wanted = [f for f in FAMILIES if installed(PACKAGES.get(f, "torch"))]
    if chosen.quick:
        wanted.remove("torchvision")
    found = []
    for case in CASES:
        if case.tags.isdisjoint(wanted) or chosen.only not in case.name:
            continue
        found.append(judge(case))
        CONSOLE.print(*row(found[-1]), sep="  ", markup=False, highlight=False)
    report(found, wanted, chosen.all or bool(chosen.only))
    if not chosen.only:
        plain = [{k: asdict(v) if isinstance(v, Outcome) else v for k, v in f.items()} for f in found]
        save("coverage", {"ratio": RATIO, "summary": summary(found, wanted), "models": plain})


def summary(found: Iterable[dict[str, Any]], families: Iterable[str]) -> dict[str, Any]:
    """How often each verdict was given, by family and library."""
    return {
        family: {
            who: dict(Counter(f[who].verdict for f in found if family in f["tags"]))
            for who in ("obc", "torch-pruning")
        }
        for family in families
    }


def row(result: dict[str, Any]) -> list[str]:
    """One model's line."""
    us, them = result["obc"], result["torch-pruning"]
    counts = [str(us.counts.get(k, "")) for k in ("sites", "channels", "frozen")]
    shares = [f"{100 * o.removed:.0f}%" if o.removed else "" for o in (us, them)]
    return [result["model"], us.verdict, *counts, shares[0], them.verdict, shares[1], them.reason or us.reason]


def report(found: list[dict[str, Any]], families: list[str], everything: bool) -> None:
    """The summary, and the models that obc does not prune."""
    counts = summary(found, families)
    seen = [v for v in VERDICTS if any(v in c for f in counts.values() for c in f.values())]
    show(
        f"{100 * RATIO:.0f}% of everything removed at random, compared with the masked original",
        ("models", "library", *seen),
        [
            (FAMILIES[family], who, *(c.get(v, 0) for v in seen))
            for family, both in counts.items()
            for who, c in both.items()
        ],
    )
    listed = [f for f in found if everything or f["obc"].verdict != "right"]
    if listed:
        show(
            "Every model" if everything else "Models that obc does not prune",
            ("model", "obc", "sites", "channels", "frozen", "gone", "torch-pruning", "gone", "reason"),
            [row(f) for f in listed],
        )


if __name__ == "__main__":
    main()
