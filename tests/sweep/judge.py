"""One line of the sweep: a family is traced, cut at random, and judged by another mathematics."""

from __future__ import annotations

import copy
import time
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

import obc
from tests.oracles import verifying
from tests.reference import random_kept
from tests.sweep.families import Family


@dataclass(frozen=True)
class Line:
    """What became of a family: "right", "refused" (by `trace`), or what went wrong."""

    family: str
    verdict: str
    sites: int
    free: float
    seconds: float


def judge(family: Family) -> Line:
    """Trace, cut 30% of every site, and compare with the masked original."""
    model, name, dtype = family.build(), family.kind, family.dtype
    limit = torch.finfo(dtype).eps ** 0.5
    example = tree_map_only(
        Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, family.example
    )
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            sites = obc.trace(model, example)
        except obc.ObcError as refusal:
            return Line(name, f"refused: {refusal}", 0, 0.0, time.process_time() - begin)
        seconds = time.process_time() - begin
        plan = obc.Plan.from_kept(sites, random_kept(sites))
        try:
            pruned = obc.apply(copy.deepcopy(model), plan, example=example)
            error = verifying(model, plan, example)(pruned)
            verdict = "right" if error < limit else f"wrong by {error:.1g}"
        except obc.ObcError as refusal:
            verdict = f"refused by apply: {refusal}"
    return Line(name, verdict, len(sites), round(_free(sites), 3), round(seconds, 2))


def _free(sites: obc.Sites) -> float:
    """The share of what layers put out that may go, a frozen layer counting once."""
    free = sum(
        m.index.numel()
        for s in sites
        for m in s.members
        if m.role == "out" and not m.param.endswith("bias")
    )
    frozen: dict[str, int] = {}
    for held in sites.frozen:
        if held.reason != "model output":
            frozen[held.layer] = max(frozen.get(held.layer, 0), held.size)
    return free / max(free + sum(frozen.values()), 1)
