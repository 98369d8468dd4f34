"""Every shared model loses 30% of every site at random, and computes what its masked self does.

Two oracles say so: the obvious one of tests/reference.py, and the one that `obc.apply` and
`obc.verify` use. Each must also notice when any one sliced weight is rolled by a channel.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import obc
from obc.surgery.verify import difference, masked_outputs
from obc.trace.tracer import Tracing, forward, outputs
from tests import reference
from tests.cases import CASES, Case
from tests.parameters import parameters
from tests.sensitive import run, tensors

# Sums over channels that no module stands for, so the obvious oracle cannot mask them.
VERIFY_ALONE = {
    "softmax_channels": "softmax over channels, as a function",
    "cbam": "mean and maximum over channels, as functions",
    "channel_norm_by_hand": "mean and variance over channels, as functions",
}
# A filter is divided by its own length or spread, and a masked one would be 0 / 0.
NORMED_WEIGHTS = {"weight_norm", "weight_standardized", "timm_nf_resnet26"}
# Every reshape in them names a number, or every pair of channels has an input of its own.
NOTHING_TO_PRUNE = {"view_literal", "outer_product"}

Oracle = Callable[[nn.Module], float]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in range(1, 4))]
)
@pytest.mark.parametrize("case", parameters(*CASES, zoo_is_slow=True))
def test_equals_its_masked_self_and_a_rolled_weight_shows(case: Case, seed: int) -> None:
    model, example = case.model(), case.example()
    sites = obc.trace(model, example)
    assert bool(sites) == (case.name not in NOTHING_TO_PRUNE)
    kept = reference.random_kept(sites, seed)
    plan = obc.Plan.from_kept(sites, kept)
    pruned = obc.apply(copy.deepcopy(model), plan, example=example)

    # Where numbers pass through float32, two right answers differ by its rounding.
    limit = 1e-5 if "single" in case.tags else 1e-9
    assert obc.verify(model, pruned, plan, example) < limit
    oracles = [verify_oracle(model, plan, example)]
    if case.name not in VERIFY_ALONE:
        oracles.append(obvious_oracle(case, model, sites, kept))
    assert all(oracle(pruned) < limit for oracle in oracles)

    weights = dict(pruned.named_parameters())
    for member in rollable(sites):
        right = weights[member.name].detach().clone()
        reference.roll(model, pruned, sites, kept, member)
        for oracle in oracles:
            assert oracle(pruned) > 10 * limit, f"{member} was rolled and nobody noticed"
        weights[member.name].data.copy_(right)
    assert all(oracle(pruned) < limit for oracle in oracles), "a roll was not undone"


def rollable(sites: obc.Sites) -> list[obc.Member]:
    """All members but biases, which may cancel: a key's in a softmax, any before a norm."""
    return [m for site in sites for m in site.members if not m.param.endswith("bias")]


def verify_oracle(model: nn.Module, plan: obc.Plan, example: object) -> Oracle:
    """`obc.verify` with its reference worked out once; a refusal counts as an infinite error."""
    expected = masked_outputs(Tracing(model, example), plan.kept)

    def error(pruned: nn.Module) -> float:
        try:
            return difference(expected, outputs(forward(pruned, example)))
        except obc.ObcError as refusal:
            assert "differs from the masked original" in str(refusal)
            return float("inf")

    return error


def obvious_oracle(
    case: Case, model: nn.Module, sites: obc.Sites, kept: dict[str, list[int]]
) -> Oracle:
    example = case.example()
    producers = case.name not in NORMED_WEIGHTS
    expected = reference.masked_outputs(model, sites, kept, example, producers)

    def error(pruned: nn.Module) -> float:
        with torch.no_grad():
            return reference.relative_error(expected, tensors(run(pruned, example)))

    return error


@pytest.mark.parametrize("case", parameters(*(c for c in CASES if c.name in VERIFY_ALONE)))
def test_the_obvious_oracle_needs_its_exceptions(case: Case) -> None:
    """If this fails, a case has become simple enough for both oracles."""
    model, example = case.model(), case.example()
    sites = obc.trace(model, example)
    kept = reference.random_kept(sites)
    pruned = obc.apply(copy.deepcopy(model), obc.Plan.from_kept(sites, kept), example=example)
    assert obvious_oracle(case, model, sites, kept)(pruned) > 1e-3
