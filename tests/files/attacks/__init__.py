"""Hostile artifacts, by name: each is a good folder with one thing done to it."""

from __future__ import annotations

import torch
from torch import nn

import obc
from obc.plans.plan import PlanCost, PlanStep
from tests.files.attacks import files, plans, tensors
from tests.reference import random_kept

ATTACKS = {**plans.ATTACKS, **tensors.ATTACKS, **files.ATTACKS}


def victim() -> nn.Sequential:
    """The fresh model that all attacks are loaded into."""
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))


def good() -> nn.Module:
    """What was saved before the attack: it knows its costs and how it came about."""
    model = victim()
    sites = obc.trace(model, torch.zeros(1, 4))
    plan = obc.Plan.from_kept(sites, random_kept(sites))
    cost = PlanCost(macs=80, params=98, channels=14, seconds=0.5)
    step = PlanStep(removed={"0": [0]}, scores={"0": [0.25]}, after=cost)
    told = {"before": cost, "after": cost, "history": [step], "target": "macs=2x"}
    return obc.apply(model, plan.model_copy(update=told))
