"""A classification that a small network learns in a second, with as many samples as one likes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from obc.tasks import Classification

FEATURES, CLASSES = 12, 4


def drawn(count: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Batches from one distribution: four clouds that overlap."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(7))
    labels = torch.randint(CLASSES, (count,), generator=generator)
    noise = torch.randn(count, FEATURES, generator=generator)
    return list(zip((centres[labels] + 1.2 * noise).split(100), labels.split(100), strict=True))


def task(test: int = 4000, seed: int = 0) -> Classification:
    return Classification(drawn(2000, 100 + seed), drawn(test, 200 + seed), name="clouds")


def trained(seed: int = 0, width: int = 48) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, CLASSES),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(3):
        for inputs, labels in drawn(2000, 100 + seed):
            optimizer.zero_grad()
            functional.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
    return net.eval()
