"""The proof: a pruned model computes what the original does with the removed channels masked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from obc.plans.plan import Plan
from obc.running.offload import at_hand
from obc.tracing.proof import Proof
from obc.tracing.tracer import Tracing


@at_hand
def verify(before: nn.Module, after: nn.Module, plan: Plan, example: Any) -> float:
    """Compare a pruned model with the masked original; returns the relative error.

    Raises `ObcError` when the two differ, or when nothing could be compared. Neither model is
    changed.
    """
    Plan.checked(plan).check(before)
    return proof(Tracing(before, example), plan.kept).error(after)


def proof(tracing: Tracing, kept: Mapping[str, Sequence[int]]) -> Proof:
    """What the original model computes with all but the kept channels masked."""
    gone = removed_ids(tracing, kept)
    cut = {
        n: tracing.ids(n) for n, channels in kept.items() if len(channels) < tracing.sites[n].size
    }
    return Proof(tracing.model, tracing.flow, tracing.example, gone, cut)


def removed_ids(tracing: Tracing, kept: Mapping[str, Sequence[int]]) -> Tensor:
    """A flag for every id of the trace: gone or not."""
    gone = torch.zeros(tracing.flow.ledger.size, dtype=torch.bool)
    of = tracing.classes.of
    for name, channels in kept.items():
        mask = torch.ones(tracing.sites[name].size, dtype=torch.bool)
        mask[list(channels)] = False
        gone[of[tracing.ids(name)[mask].reshape(-1)]] = True
    return gone[of]
