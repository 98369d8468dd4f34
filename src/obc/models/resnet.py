"""ResNets for 32x32 images: basic blocks in three stages, 1x1 convolutions where shapes change."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around which the input is carried along."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + shortcut)


class ResNet(nn.Module):
    """A ResNet of 6 * blocks + 2 layers; each stage has twice the channels of the one before."""

    def __init__(self, blocks: int, num_classes: int, in_channels: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = stage(width, width, blocks, 1)
        self.layer2 = stage(width, 2 * width, blocks, 2)
        self.layer3 = stage(2 * width, 4 * width, blocks, 2)
        self.fc = nn.Linear(4 * width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        x = F.adaptive_avg_pool2d(x, 1).flatten(1)
        logits: Tensor = self.fc(x)
        return logits


def stage(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
    """Blocks at one resolution; the first one changes the shape."""
    rest = (BasicBlock(outputs, outputs, 1) for _ in range(blocks - 1))
    return nn.Sequential(BasicBlock(inputs, outputs, stride), *rest)


def resnet20(num_classes: int = 10, in_channels: int = 3, width: int = 16) -> ResNet:
    """ResNet-20: 0.04 B MACs at 32x32."""
    return ResNet(3, num_classes, in_channels, width)


def resnet56(num_classes: int = 10, in_channels: int = 3, width: int = 16) -> ResNet:
    """ResNet-56: 0.13 B MACs at 32x32."""
    return ResNet(9, num_classes, in_channels, width)
