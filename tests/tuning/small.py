"""A small network, small images and what tuning tests compare."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import obc
from obc.data import Loaded


def net(seed: int = 0, norm: bool = True, classes: int = 4) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8) if norm else nn.Identity(),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, classes),
    )


def images(count: int, classes: int = 4) -> Loaded:
    """Bright squares, somewhere else for each class."""
    random = torch.Generator().manual_seed(3)
    labels = torch.randint(0, classes, (count,), generator=random)
    pixels = torch.randint(0, 100, (count, 1, 8, 8), generator=random)
    for i, label in enumerate(labels.tolist()):
        pixels[i, 0, 2 * label : 2 * label + 2] += 150
    names = [str(i) for i in range(classes)]
    return Loaded(pixels.to(torch.uint8), labels, names, [0.3], [0.3])


def equivalent(seed: int = 0, norm: bool = True) -> nn.Module:
    """The same network, pruned with every connection kept."""
    model = net(seed, norm).eval()
    sites = obc.trace(model, torch.zeros(1, 1, 8, 8))
    kept = {s.name: list(range(s.size))[::2] for s in sites}
    return obc.apply(model, obc.Plan.from_kept(sites, kept), equivalent=True)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)
