"""Schedules follow their formulas and come back to the very bits; C and D have their own rates."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from obc.tuning.optimizing import optimizer_of, schedule_of
from obc.tuning.recipe import Recipe
from tests.tuning.small import equivalent, net

STEPS = 5


def rates(done: int = 0, **fields: Any) -> list[float]:
    recipe = Recipe(**{"lr": 0.1, "epochs": 10, "batch_size": 4, **fields})
    optimizer = optimizer_of(net(), recipe)
    schedule = schedule_of(optimizer, recipe, STEPS, done)
    found = []
    for _ in range(recipe.epochs * STEPS - done):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def cosine(t: int, total: int) -> float:
    return 0.1 * (1 + math.cos(math.pi * t / total)) / 2


def test_multistep() -> None:
    found = rates(milestones=[6, 8])
    assert found == pytest.approx([0.1] * 30 + [0.01] * 10 + [0.001] * 10)


def test_cosine() -> None:
    assert rates(schedule="cosine") == pytest.approx([cosine(t, 50) for t in range(50)])


def test_constant() -> None:
    assert rates(schedule="constant") == [0.1] * 50


def test_linear_warmup_then_the_rest() -> None:
    found = rates(schedule="cosine", warmup_epochs=2, warmup_factor=0.033)
    warm = [0.1 * (0.033 + (1 - 0.033) * t / 10) for t in range(10)]
    assert found == pytest.approx(warm + [cosine(t, 40) for t in range(40)])
    found = rates(milestones=[6, 8], warmup_epochs=2, warmup_factor=0.5)
    assert found[10:] == pytest.approx([0.1] * 20 + [0.01] * 10 + [0.001] * 10)


@pytest.mark.parametrize(
    "fields",
    [
        {"milestones": [2, 8]},
        {"schedule": "cosine"},
        {"schedule": "cosine", "warmup_epochs": 3, "warmup_factor": 0.1},
    ],
)
@pytest.mark.parametrize("done", [1, 14, 15, 16, 33])
def test_coming_back_gives_the_very_bits(fields: dict[str, Any], done: int) -> None:
    assert rates(done, **fields) == rates(**fields)[done:]


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_factors_have_rates_of_their_own(kind: str) -> None:
    recipe = Recipe(
        **{"lr": 0.1, "epochs": 1, "batch_size": 4, "optimizer": kind, "weight_decay": 0.3},
        **{"ep_lr": 0.02, "ep_weight_decay": 0.0, "momentum": 0.8, "betas": [0.5, 0.6]},
    )
    model = equivalent()
    optimizer = optimizer_of(model, recipe)
    by_id = {id(p): g for g in optimizer.param_groups for p in g["params"]}
    seen = set()
    for name, p in model.named_parameters():
        group, factor = by_id[id(p)], "matrices" in name
        assert (group["lr"], group["weight_decay"]) == ((0.02, 0.0) if factor else (0.1, 0.3)), name
        seen.add(factor)
    assert seen == {True, False}
    if kind == "sgd":
        assert isinstance(optimizer, torch.optim.SGD) and optimizer.defaults["momentum"] == 0.8
    else:
        assert isinstance(optimizer, torch.optim.AdamW)
        assert optimizer.defaults["betas"] == (0.5, 0.6)


def test_without_rates_for_factors_those_of_the_weights_hold() -> None:
    recipe = Recipe(lr=0.1, epochs=1, batch_size=4, weight_decay=0.3)
    optimizer = optimizer_of(equivalent(), recipe)
    assert {(g["lr"], g["weight_decay"]) for g in optimizer.param_groups} == {(0.1, 0.3)}
