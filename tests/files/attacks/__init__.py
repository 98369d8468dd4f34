"""Hostile artifacts, by name: each is a good folder with one thing done to it."""

from __future__ import annotations

import torch
from torch import nn

from tests.files.attacks import files, plans, tensors
from tests.files.kept import prune

ATTACKS = {**plans.ATTACKS, **tensors.ATTACKS, **files.ATTACKS}


def victim() -> nn.Sequential:
    """The fresh model that all attacks are loaded into."""
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))


def good() -> nn.Module:
    """What was saved before the attack."""
    return prune(victim(), torch.zeros(1, 4))
