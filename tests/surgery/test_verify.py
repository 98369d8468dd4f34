"""`obc.verify` says yes to what is right, no to what is not, and changes neither model."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import obc
from obc.running.difference import difference
from tests.cases import case
from tests.examples import floats
from tests.reference import random_kept, roll
from tests.untouched import untouched


def pruned_pair(name: str) -> tuple[nn.Module, nn.Module, obc.Plan]:
    net = case(name)
    model = net.model()
    sites = obc.trace(model, net.example())
    plan = obc.Plan.from_kept(sites, random_kept(sites))
    return model, obc.apply(copy.deepcopy(model), plan, example=net.example()), plan


def test_neither_model_changes() -> None:
    before, after, plan = pruned_pair("resnet20")
    before.train()
    after.train()
    with untouched(before, after):
        assert obc.verify(before, after, plan, case("resnet20").example()) < 1e-12


def test_another_input_does_as_well() -> None:
    before, after, plan = pruned_pair("resnet20")
    assert obc.verify(before, after, plan, floats(1, 3, 20, 12, seed=5)) < 1e-12


@pytest.mark.parametrize("name", ["resnet20", "qkv_chunk", "layer_norm"])
def test_a_model_pruned_by_another_plan_differs(name: str) -> None:
    before, after, plan = pruned_pair(name)
    site, part = next(iter(plan.sites.items()))
    gone = next(c for c in range(part.size) if c not in part.kept)
    sites = obc.trace(before, case(name).example())
    other = obc.Plan.from_kept(sites, {**plan.kept, site: [*part.kept[1:], gone]})
    with pytest.raises(obc.ObcError, match="differs from the masked original by"):
        obc.verify(before, after, other, case(name).example())


def test_the_unpruned_model_differs() -> None:
    before, _, plan = pruned_pair("resnet20")
    with pytest.raises(obc.ObcError, match="differs from the masked original"):
        obc.verify(before, copy.deepcopy(before), plan, case("resnet20").example())


def test_the_models_the_wrong_way_round() -> None:
    before, after, plan = pruned_pair("resnet20")
    with pytest.raises(obc.ObcError, match="the plan is for another model"):
        obc.verify(after, before, plan, case("resnet20").example())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_rolled_weight_shows_at_low_precision_too(dtype: torch.dtype) -> None:
    net = case("resnet20")
    model, example = net.model().to(dtype), net.example().to(dtype)
    sites = obc.trace(model, example)
    kept = random_kept(sites)
    plan = obc.Plan.from_kept(sites, kept)
    pruned = obc.apply(copy.deepcopy(model), plan, example=example)
    weights = dict(pruned.named_parameters())
    for site in sites:
        reader = next(m for m in site.members if m.role == "in")
        right = weights[reader.name].detach().clone()
        roll(model, pruned, sites, kept, reader)
        with pytest.raises(obc.ObcError, match="differs from the masked original"):
            obc.verify(model, pruned, plan, example)
        weights[reader.name].data.copy_(right)


def test_a_huge_constant_hides_no_difference() -> None:
    """Logits that are masked by -1e9 are no measure for the others."""
    expected = torch.tensor([0.5, -0.3, -1e9])
    with pytest.raises(obc.ObcError, match="differs"):
        difference([expected], [expected + torch.tensor([0.0, 1.0, 0.0])])


ONE = torch.tensor([1.0, 2.0], dtype=torch.float64)


@pytest.mark.parametrize(
    "found",
    [
        ONE + 1e-6,
        ONE * float("nan"),
        torch.tensor([1.0, float("inf")], dtype=torch.float64),
        ONE[:1],
        ONE[None],
    ],
    ids=["off", "nan", "infinite", "short", "shape"],
)
def test_differences(found: torch.Tensor) -> None:
    with pytest.raises(obc.ObcError):
        difference([ONE], [found])


def test_rounding_is_no_difference() -> None:
    assert difference([ONE], [ONE * (1 + 1e-15)]) < 1e-14


def test_rounding_may_decide_between_two_whole_numbers() -> None:
    many, few = torch.zeros(200, dtype=torch.long), torch.zeros(200, dtype=torch.long)
    few[7] = 1
    assert difference([ONE, many], [ONE, few]) == 0
    few[:7] = 1
    with pytest.raises(obc.ObcError, match="other whole numbers"):
        difference([ONE, many], [ONE, few])


def test_infinities_in_the_same_places_are_none() -> None:
    masked = torch.tensor([1.0, float("-inf")])
    assert difference([masked], [masked.clone()]) == 0


def test_one_output_too_few() -> None:
    with pytest.raises(obc.ObcError, match="puts out"):
        difference([ONE, ONE], [ONE])
