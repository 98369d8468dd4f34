"""ResNets for 32x32 images: basic blocks in three stages, 1x1 convolutions where shapes change."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from obc.models.initialisation import kaiming

Shortcut = Callable[[int, int, int], nn.Module]  # of inputs, outputs and stride


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around which the input is carried along."""

    def __init__(self, inputs: int, outputs: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + shortcut)


class Trunk(nn.Module):
    """6 * blocks + 1 convolutions; each stage has twice the channels of the one before."""

    def __init__(self, blocks: int, in_channels: int, width: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = stage(width, width, blocks, 1, shortcut)
        self.layer2 = stage(width, 2 * width, blocks, 2, shortcut)
        self.layer3 = stage(2 * width, 4 * width, blocks, 2, shortcut)

    def forward(self, x: Tensor) -> Tensor:
        """The last stage's channels, averaged over positions."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return F.adaptive_avg_pool2d(x, 1).flatten(1)


class ResNet(Trunk):
    """A ResNet of 6 * blocks + 2 layers whose shortcuts are convolved where shapes change."""

    def __init__(self, blocks: int, num_classes: int, in_channels: int, width: int) -> None:
        super().__init__(blocks, in_channels, width, convolved)
        self.fc = nn.Linear(4 * width, num_classes)
        kaiming(self)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(super().forward(x))
        return logits


def convolved(inputs: int, outputs: int, stride: int) -> nn.Module:
    """He's option B: a 1x1 convolution with BN."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


def stage(inputs: int, outputs: int, blocks: int, stride: int, shortcut: Shortcut) -> nn.Sequential:
    """Blocks at one resolution; the first one changes the shape."""
    rest = (BasicBlock(outputs, outputs, 1, shortcut) for _ in range(blocks - 1))
    return nn.Sequential(BasicBlock(inputs, outputs, stride, shortcut), *rest)


def resnet20(num_classes: int = 10, in_channels: int = 3, width: int = 16) -> ResNet:
    """ResNet-20: 0.04 B MACs at 32x32."""
    return ResNet(3, num_classes, in_channels, width)


def resnet56(num_classes: int = 10, in_channels: int = 3, width: int = 16) -> ResNet:
    """ResNet-56: 0.13 B MACs at 32x32."""
    return ResNet(9, num_classes, in_channels, width)
