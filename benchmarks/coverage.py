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
from benchmarks._harness import CONSOLE, save, show, time_limit
from obc.surgery.verify import _Masked, difference
from obc.trace.layers import unchanged
from obc.trace.solve import base_classes
from obc.trace.tracer import Tracing, forward, outputs
from tests.cases import CASES, Case
from tests.vision import installed

RATIO = 0.3
PATIENCE = 20.0  # CPU seconds; what ends at all ends within three
FAMILIES = {"hand": "written by hand", "hf": "transformers", "torchvision": "torchvision"}
PACKAGES = {"hf": "transformers", "torchvision": "torchvision"}
# From best to worst: a crash is noticed, a wrong model is not.
VERDICTS = (
    "right",
    "nothing pruned",
    "refused",
    "not judged",
    "no end",
    "crash",
    "other shape",
    "wrong",
)

Kept = Mapping[tuple[str, int], Tensor]  # what is left of a parameter's dimension


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
        with time_limit(PATIENCE):
            _peer.prune(pruned, example, ignored, RATIO)
    except TimeoutError as error:
        return Outcome("no end", reason=_first_line(error))
    except Exception as error:
        return Outcome("crash", reason=f"while pruning: {_first_line(error)}")
    try:
        after = outputs(forward(pruned, example))
    except Exception as error:
        return Outcome("crash", reason=f"when run: {_first_line(error)}")
    share = _removed(model, pruned)
    if [t.shape for t in before] != [t.shape for t in after]:
        return Outcome("other shape", share, f"{[tuple(t.shape) for t in after]}")
    if not share:
        return Outcome("nothing pruned")
    if tracing is None:
        return Outcome("not judged", share, "obc cannot trace it, and obc's masks are the judge")
    try:
        kept = _kept(model, pruned)
    except ValueError as error:
        return Outcome("not judged", share, str(error))
    reasons = []
    for reference in (_zeroed_outputs, _masked_outputs):
        try:
            difference(reference(tracing, kept), after)
            return Outcome("right", share)
        except Exception as error:
            reasons.append(_first_line(error))
    frozen = _frozen_but_removed(tracing, kept)
    if frozen:
        return Outcome("not judged", share, f"removes what obc leaves: {frozen}")
    return Outcome("wrong", share, reasons[-1])


def _output_layers(model: nn.Module, tracing: Tracing | None) -> list[str]:
    """Layers that put out what the model puts out: torch-pruning's user has to name them."""
    if tracing is None:
        return [[n for n, m in model.named_modules() if isinstance(m, tuple(_peer.ROOTS))][-1]]
    ledger = tracing.flow.ledger
    base = base_classes(ledger)
    out = torch.zeros(ledger.size, dtype=torch.bool)
    for ids, reason in ledger.frozen:
        if reason.text == "model output":
            out[base[ids]] = True
    leaves = {id(leaf.tensor): leaf for leaf in tracing.flow.leaves.values()}
    found = []
    for name, layer in model.named_modules():
        leaf = leaves.get(id(getattr(layer, "weight", None)))
        if leaf is not None and isinstance(layer, tuple(_peer.ROOTS)):
            ids = leaf.dims[1 if getattr(layer, "transposed", False) else 0]
            if ids is not None and out[base[ids]].any():
                found.append(name)
    return found


def _kept(before: nn.Module, after: nn.Module) -> Kept:
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
            rows = at.movedim(dim, 0).reshape(part.shape[dim], -1)
            if not torch.equal(rows, rows[:, :1].expand_as(rows)):
                raise ValueError(f"'{name}' is not a slice of the original")
            left[name, dim] = rows[:, 0]
    return left


def _zeroed_outputs(tracing: Tracing, kept: Kept) -> list[Tensor]:
    """What a copy puts out that holds zeros wherever a position was removed: needs no trace."""
    zeroed = copy.deepcopy(tracing.model)
    with torch.no_grad():
        for name, tensor in zeroed.named_parameters(remove_duplicate=False):
            for dim in range(tensor.ndim):
                if (name, dim) in kept:
                    tensor.index_fill_(dim, _gone(kept[name, dim], tensor.shape[dim]), 0)
    return outputs(forward(zeroed, tracing.example))


def _masked_outputs(tracing: Tracing, kept: Kept) -> list[Tensor]:
    """What the original puts out when norms and softmaxes, too, leave out what was removed."""
    gone = _gone_ids(tracing, kept)
    with unchanged(tracing.model):
        return outputs(tracing.run(_Masked(tracing.model, tracing, gone)))


def _frozen_but_removed(tracing: Tracing, kept: Kept) -> str:
    """Why obc would not have removed some of it: past such a place its masks do not reach."""
    why = tracing.classes.why[tracing.classes.of[_gone_ids(tracing, kept)]]
    codes = why[why >= 0].unique().tolist()
    return "; ".join(sorted({tracing.classes.reasons[c].text for c in codes}))


def _gone_ids(tracing: Tracing, kept: Kept) -> Tensor:
    gone = torch.zeros(tracing.flow.ledger.size, dtype=torch.bool)
    for leaf in tracing.flow.leaves.values():
        for dim, ids in enumerate(leaf.dims):
            if ids is not None and (leaf.name, dim) in kept:
                gone[ids[_gone(kept[leaf.name, dim], len(ids))]] = True
    return gone


def _gone(kept: Tensor, size: int) -> Tensor:
    gone = torch.ones(size, dtype=torch.bool)
    gone[kept] = False
    return gone.nonzero().reshape(-1)


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
        plain = [
            {k: asdict(v) if isinstance(v, Outcome) else v for k, v in f.items()} for f in found
        ]
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
    return [
        result["model"],
        us.verdict,
        *counts,
        shares[0],
        them.verdict,
        shares[1],
        them.reason or us.reason,
    ]


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
            (
                "model",
                "obc",
                "sites",
                "channels",
                "frozen",
                "gone",
                "torch-pruning",
                "gone",
                "reason",
            ),
            [row(f) for f in listed],
        )


if __name__ == "__main__":
    main()
