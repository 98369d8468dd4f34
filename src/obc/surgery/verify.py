"""The proof: a pruned model computes what the original does with the removed channels masked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from obc.plans.plan import Plan
from obc.running.difference import difference
from obc.running.forward import forward, outputs
from obc.running.snapshot import unchanged
from obc.tracing.masked import Masked
from obc.tracing.tracer import Tracing


def verify(before: nn.Module, after: nn.Module, plan: Plan, example: Any) -> float:
    """Compare a pruned model with the masked original; returns the relative error.

    Raises `ObcError` when the two differ. Neither model is changed.
    """
    plan.check(before)
    tracing = Tracing(before, example)
    reference = masked_outputs(tracing, plan.kept)
    with unchanged(after):
        return difference(reference, outputs(forward(after, example)))


def masked_outputs(tracing: Tracing, kept: Mapping[str, Sequence[int]]) -> list[Tensor]:
    """What the original model puts out with all but the kept channels masked."""
    model = tracing.model
    flow = Masked(model, tracing.flow, removed_ids(tracing, kept))
    with unchanged(model):
        return outputs(tracing.run(flow))


def removed_ids(tracing: Tracing, kept: Mapping[str, Sequence[int]]) -> Tensor:
    """A flag for every id of the trace: gone or not."""
    leaves = {leaf.name: leaf for leaf in tracing.flow.leaves.values()}
    gone = torch.zeros(tracing.flow.ledger.size, dtype=torch.bool)
    of = tracing.classes.of
    for name, channels in kept.items():
        site = tracing.sites[name]
        mask = torch.ones(site.size, dtype=torch.bool)
        mask[list(channels)] = False
        member = site.members[0]
        ids = leaves[member.name].dims[member.dim]
        assert ids is not None
        gone[of[ids[member.index[mask].reshape(-1)]]] = True
    return gone[of]
