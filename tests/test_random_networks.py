"""Random networks, random legal plans: what is left computes what the masked original does."""

from __future__ import annotations

import copy
import random
from typing import Any

import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st

import obc
from tests.kinds import Pick
from tests.oracles import Oracle, obvious, rolls, verifying
from tests.programs import Program, build, programs
from tests.reference import random_kept

Drawn = tuple[Program, tuple[torch.Tensor, ...]]


def any_kept(sites: obc.Sites, seed: int) -> dict[str, list[int]]:
    """From one channel to all of them at each site; some sites are not named."""
    dice = random.Random(seed)
    named = [site for site in sites if dice.random() < 0.9]
    return {s.name: sorted(dice.sample(range(s.size), dice.randint(1, s.size))) for s in named}


def oracles(model: Program, sites: obc.Sites, plan: obc.Plan, example: Any) -> list[Oracle]:
    found = [verifying(model, plan, example)]
    return found if model.mixes else [*found, obvious(model, sites, plan, example)]


@settings(max_examples=max(40, settings().max_examples))
@given(programs(), st.integers(0, 2**16))
def test_any_legal_plan_leaves_the_masked_network(drawn: Drawn, seed: int) -> None:
    model, example = drawn
    note(str(model))
    sites = obc.trace(model, example)
    note(str(sites))
    plan = obc.Plan.from_kept(sites, any_kept(sites, seed))
    note(str(plan.kept))
    pruned = obc.apply(copy.deepcopy(model), plan, example=example)
    for oracle in oracles(model, sites, plan, example):
        assert oracle(pruned) < 1e-9


def test_nearly_all_rolled_weights_show() -> None:
    """Some cannot: behind a ReLU that is dead for this input, or a norm of one channel."""
    members = noticed = pruned_ones = 0
    for seed in range(40):
        model, example = build(Pick(random.Random(seed).choice))
        sites = obc.trace(model, example)
        pruned_ones += bool(sites)
        plan = obc.Plan.from_kept(sites, random_kept(sites))
        pruned = obc.apply(copy.deepcopy(model), plan, example=example)
        judges = oracles(model, sites, plan, example)
        for _ in rolls(model, pruned, sites, plan):
            members += 1
            noticed += all(judge(pruned) > 1e-8 for judge in judges)
    assert pruned_ones > 25, "too few of the networks have anything to prune"
    assert members > 150
    assert noticed > 0.9 * members, f"{noticed} of {members} were noticed"
