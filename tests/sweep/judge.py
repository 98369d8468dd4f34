"""One line of the sweep: a family is traced, cut at random, and judged by another mathematics."""

from __future__ import annotations

import copy
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import obc
from obc.tracing.sites import Frozen
from tests.oracles import rolls
from tests.reference import random_kept, relative_error
from tests.sensitive import mapped, run, sensitive, tensors
from tests.sweep.families import Family
from tests.sweep.masking import masked_outputs

# Norms of language models compute in single precision, whatever they are given.
LIMIT = 1e-5
# Nobody expects these to go: what a model returns, and words or positions, the rows of a table.
ENDS = ("model output", "rows of a table are picked by index")


@dataclass(frozen=True)
class Line:
    """What became of a family: "right", "refused" (by `trace`), or what went wrong.

    `fault` is the error that a weight out of place makes, which the judge has to see; `frozen` the
    most frequent reason why channels stay.
    """

    family: str
    verdict: str
    sites: int = 0
    free: float = 0.0
    seconds: float = 0.0
    error: float = 0.0
    fault: float = 0.0
    frozen: str = ""


def judge(family: Family) -> Line:
    """Trace, cut 30% of every site, and compare with the masked original."""
    model, example = prepare(family)
    begin = time.process_time()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            sites = obc.trace(model, example)
        except obc.ObcError as refusal:
            return Line(repr(family), f"refused: {refusal}", seconds=time.process_time() - begin)
        seconds = time.process_time() - begin
        kept = random_kept(sites)
        plan = obc.Plan.from_kept(
            sites, {n: k for n, k in kept.items() if not family.spared or family.spared not in n}
        )
        verdict, error, fault = _compare(model, sites, plan, example)
    reasons = Counter[str]()
    for held in sites.frozen:
        if held.reason not in ENDS and not _rows_of_a_table(model, held):
            reasons[held.reason] += held.size
    why = reasons.most_common(1)[0][0] if reasons else ""
    share = round(_free(model, sites), 3)
    return Line(repr(family), verdict, len(sites), share, round(seconds, 2), error, fault, why)


def prepare(family: Family) -> tuple[nn.Module, Any]:
    """The model in eval mode, always with the same weights, and its example."""
    example = family.example()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = family.build().double().eval()
        if family.drawn:
            with torch.no_grad():
                sensitive(model, 0, example)
        example = mapped(lambda t: t.to(family.dtype) if t.is_floating_point() else t, example)
        with torch.no_grad():
            run(model.to(family.dtype), example)  # RWKV changes its weights in the first run
    return model, example


def _compare(
    model: nn.Module, sites: obc.Sites, plan: obc.Plan, example: Any
) -> tuple[str, float, float]:
    """The verdict, the error of a cut, and that of a cut with a fault in it."""
    try:
        pruned = obc.apply(copy.deepcopy(model), plan, example=example)
    except obc.ObcError as refusal:
        return f"refused by apply: {refusal}", 0.0, 0.0
    with _seeded():
        expected = masked_outputs(model, sites, plan.kept, example)
    error = relative_error(expected, _outputs(pruned, example))
    if not len(sites):
        return "nothing to prune", error, 0.0
    fault = 0.0
    cut = {n for name in plan.kept for m in sites[name].members for n, _ in m.places}
    for member in rolls(model, pruned, sites, plan, one_each=True):
        if member.name not in cut:
            continue
        fault = relative_error(expected, _outputs(pruned, example))
        break
    if error > LIMIT:
        return f"wrong by {error:.1g}", error, fault
    return ("right" if fault > LIMIT else "the judge is blind"), error, fault


def _outputs(model: nn.Module, example: Any) -> list[Tensor]:
    with _seeded():
        return tensors(run(model, example))


@contextmanager
def _seeded() -> Iterator[None]:
    """What a model draws in eval mode, such as ViTMAE the patches it hides, is drawn alike."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def _free(model: nn.Module, sites: obc.Sites) -> float:
    """The share of what layers put out that may go, a frozen layer counting once."""
    free = sum(
        m.index.numel()
        for s in sites
        for member in s.members
        for m in member.each()
        if m.role == "out" and not m.param.endswith("bias")
    )
    frozen: dict[str, int] = {}
    for held in sites.frozen:
        if held.reason not in ENDS and not _rows_of_a_table(model, held):
            frozen[held.layer] = max(frozen.get(held.layer, 0), held.size)
    return free / max(free + sum(frozen.values()), 1)


def _rows_of_a_table(model: nn.Module, held: Frozen) -> bool:
    """Words or positions, whatever picks them: DeBERTa gathers its relative ones itself."""
    table = model.get_submodule(held.layer)
    return isinstance(table, nn.Embedding) and held.size == table.num_embeddings
