"""Every shared model loses 30% of every site at random, and computes what its masked self does.

Two oracles say so: the obvious one of tests/reference.py, and the one that `obc.apply` and
`obc.verify` use. Each must also notice when any one sliced weight is rolled by a channel.
"""

from __future__ import annotations

import copy

import pytest

import obc
from tests.cases import CASES, NOTHING_TO_PRUNE, Case
from tests.oracles import obvious, rolls, verifying
from tests.parameters import parameters
from tests.reference import random_kept
from tests.untouched import untouched

# Sums over channels that no module stands for, so the obvious oracle cannot mask them.
VERIFY_ALONE = {
    "softmax_channels": "softmax over channels, as a function",
    "cbam": "mean and maximum over channels, as functions",
    "channel_norm_by_hand": "mean and variance over channels, as functions",
}
# A filter is divided by its own length or spread, and a masked one would be 0 / 0.
NORMED_WEIGHTS = {"weight_norm", "weight_standardized"}

ZOO = [c for c in CASES if not c.tags.isdisjoint(("torchvision", "timm"))]
OTHERS = [c for c in CASES if c not in ZOO]


@pytest.mark.parametrize("case", parameters(*OTHERS))
def test_small_models(case: Case) -> None:
    check(case, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("case", parameters(*OTHERS))
def test_small_models_cut_otherwise(case: Case, seed: int) -> None:
    check(case, seed)


@pytest.mark.slow
@pytest.mark.parametrize("case", parameters(*ZOO))
def test_the_zoo(case: Case) -> None:
    """At their real width, so only one weight of each site is rolled."""
    check(case, seed=0, one_each=True)


def check(case: Case, seed: int, one_each: bool = False) -> None:
    """The case equals its masked self, and each rolled weight shows."""
    model, example = case.model(), case.example()
    with untouched(model):
        sites = obc.trace(model, example)
    assert bool(sites) == (case.name not in NOTHING_TO_PRUNE)
    plan = obc.Plan.from_kept(sites, random_kept(sites, seed))
    pruned = obc.apply(copy.deepcopy(model), plan, example=example)

    # Where numbers pass through float32, two right answers differ by its rounding.
    limit = 1e-5 if "single" in case.tags else 1e-9
    with untouched(model, pruned):
        assert obc.verify(model, pruned, plan, example) < limit
    oracles = [verifying(model, plan, example)]
    if case.name not in VERIFY_ALONE:
        oracles.append(obvious(model, sites, plan, example, case.name not in NORMED_WEIGHTS))
    assert all(oracle(pruned) < limit for oracle in oracles)
    for member in rolls(model, pruned, sites, plan, one_each):
        for oracle in oracles:
            assert oracle(pruned) > 10 * limit, f"{member} was rolled and nobody noticed"
    assert all(oracle(pruned) < limit for oracle in oracles), "a roll was not undone"


@pytest.mark.parametrize("case", parameters(*(c for c in CASES if c.name in VERIFY_ALONE)))
def test_the_obvious_oracle_needs_its_exceptions(case: Case) -> None:
    """If this fails, a case has become simple enough for both oracles."""
    model, example = case.model(), case.example()
    sites = obc.trace(model, example)
    plan = obc.Plan.from_kept(sites, random_kept(sites))
    pruned = obc.apply(copy.deepcopy(model), plan, example=example)
    assert obvious(model, sites, plan, example)(pruned) > 1e-3
