"""Segmentation: a small U-Net finds discs and squares in noise.

    obc tune  examples/task_segmentation.py:UNet --recipe examples/task_segmentation.toml \
              --out runs/dense
    obc prune runs/dense --task examples/task_segmentation.py:task --target miou-5% --step 0.05 \
              --out runs/small
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from obc.tasks import Segmentation


def block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


class UNet(nn.Module):
    """Two levels down and up again; what was seen on the way down is concatenated on the way up."""

    def __init__(self, classes: int = 3, width: int = 8) -> None:
        super().__init__()
        self.down = nn.ModuleList([block(1, width), block(width, 2 * width)])
        self.bottom = block(2 * width, 4 * width)
        self.up = nn.ModuleList([block(6 * width, 2 * width), block(3 * width, width)])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        seen = []
        for layer in self.down:
            x = layer(x)
            seen.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for layer in self.up:
            x = layer(torch.cat([F.interpolate(x, scale_factor=2.0), seen.pop()], 1))
        logits: Tensor = self.head(x)
        return logits


def shapes(count: int, seed: int, side: int = 16) -> TensorDataset:
    """Images of one disc (1) and one square (2) each, and their masks; edges are not judged."""
    random = torch.Generator().manual_seed(seed)
    centres = torch.rand(count, 2, 2, generator=random) * (side - 6) + 3
    radii = torch.rand(count, 2, generator=random) * 2 + 2
    grid = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"))
    apart = grid[None, None] - centres[..., None, None]
    distances = apart[:, 0].square().sum(1).sqrt(), apart[:, 1].abs().amax(1)
    masks = torch.zeros(count, side, side, dtype=torch.long)
    for label, distance in enumerate(distances, 1):
        radius = radii[:, label - 1, None, None]
        masks[distance <= radius] = label
        masks[(distance - radius).abs() < 0.25] = 255
    levels = torch.tensor([0.0, 1.0, -1.0])[masks.where(masks < 3, 0)]
    images = levels + 0.4 * torch.randn(levels.shape, generator=random)
    return TensorDataset(images[:, None], masks)


def task() -> Segmentation:
    return Segmentation(shapes(512, seed=0), shapes(400, seed=1), name="shapes")
