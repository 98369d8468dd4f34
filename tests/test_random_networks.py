"""Random networks, random legal plans: what is left computes what the masked original does."""

from __future__ import annotations

import copy
import random

import torch
from hypothesis import given, note
from hypothesis import strategies as st
from torch import Tensor

import obc
from tests import reference
from tests.programs import Program, programs
from tests.sensitive import run, tensors


def any_plan(sites: obc.Sites, seed: int) -> dict[str, list[int]]:
    """At least one channel of each site, from one to all; some sites are not named."""
    dice = random.Random(seed)
    named = [site for site in sites if dice.random() < 0.9]
    return {s.name: sorted(dice.sample(range(s.size), dice.randint(1, s.size))) for s in named}


@given(programs(), st.integers(0, 2**16))
def test_any_legal_plan_leaves_the_masked_network(
    drawn: tuple[Program, tuple[Tensor, ...]], seed: int
) -> None:
    model, example = drawn
    note(str(model))
    sites = obc.trace(model, example)
    note(str(sites))
    kept = any_plan(sites, seed)
    note(str(kept))
    plan = obc.Plan.from_kept(sites, kept)
    pruned = obc.apply(copy.deepcopy(model), plan, example=example)
    assert obc.verify(model, pruned, plan, example) < 1e-9
    if not model.mixes:
        expected = reference.masked_outputs(model, sites, kept, example)
        with torch.no_grad():
            found = tensors(run(pruned, example))
        assert reference.relative_error(expected, found) < 1e-9
