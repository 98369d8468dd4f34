"""ResNet-50 for ImageNet: bottleneck blocks in four stages, with torchvision's parameter names."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from obc.models.initialisation import kaiming
from obc.models.resnet import convolved

BLOCKS = (3, 4, 6, 3)
EXPANSION = 4


class Bottleneck(nn.Module):
    """A 3x3 convolution between two of 1x1, around which the input is carried along.

    The stride sits in the 3x3 convolution (version 1.5 of the network), as in torchvision.
    """

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = convolved(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + shortcut)


class BottleneckResNet(nn.Module):
    """A 7x7 convolution, four stages of bottlenecks, averaged positions and a classifier."""

    def __init__(self, num_classes: int, in_channels: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        inputs = width
        for number, blocks in enumerate(BLOCKS):
            inner = width << number
            first = Bottleneck(inputs, inner, 1 if number == 0 else 2)
            inputs = EXPANSION * inner
            rest = (Bottleneck(inputs, inner, 1) for _ in range(blocks - 1))
            self.add_module(f"layer{number + 1}", nn.Sequential(first, *rest))
        self.fc = nn.Linear(inputs, num_classes)
        kaiming(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for number in range(len(BLOCKS)):
            x = self.get_submodule(f"layer{number + 1}")(x)
        logits: Tensor = self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits


def resnet50(num_classes: int = 1000, in_channels: int = 3, width: int = 64) -> BottleneckResNet:
    """ResNet-50: 4.1 B MACs at 224x224, 25.6 M parameters.

    >>> sum(p.numel() for p in resnet50().parameters())
    25557032
    """
    return BottleneckResNet(num_classes, in_channels, width)
