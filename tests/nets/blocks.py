"""Convolutional networks in published shapes: residual, dense, inverted, parallel, U-shaped."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def conv_bn(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """Convolution, BN and ReLU, which most of the networks below are made of."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class Head(nn.Module):
    """Global average pooling and one linear layer."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class PreActivationBlock(nn.Module):
    """BN and ReLU before each convolution; the shortcut forks after the first activation."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(y)
        y = self.conv1(y)
        return self.conv2(F.relu(self.bn2(y))) + shortcut


class PreActivationResNet(nn.Module):
    """Residual stages whose sums are never activated before the next block reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 10, 3, 1, 1, bias=False)
        self.blocks = nn.Sequential(
            PreActivationBlock(10, 10, 1),
            PreActivationBlock(10, 10, 1),
            PreActivationBlock(10, 14, 2),
            PreActivationBlock(14, 14, 1),
        )
        self.bn = nn.BatchNorm2d(14)
        self.head = Head(14, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.bn(self.blocks(self.conv1(x)))))


class Bottleneck(nn.Module):
    """1x1, 3x3 (grouped if asked) and 1x1 convolutions; the last one widens."""

    def __init__(self, inputs: int, inner: int, outputs: int, stride: int, groups: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class BottleneckResNet(nn.Module):
    """A bottleneck ResNet; with depths (3, 4, 6, 3) it is ResNet-50, or ResNeXt-50 with groups."""

    def __init__(
        self, width: int, depths: tuple[int, ...], expansion: int = 4, groups: int = 1
    ) -> None:
        super().__init__()
        self.stem = conv_bn(3, width, stride=2)
        blocks: list[nn.Module] = []
        inputs, inner = width, width
        for number, depth in enumerate(depths):
            for position in range(depth):
                stride = 2 if number and not position else 1
                blocks.append(Bottleneck(inputs, inner, inner * expansion, stride, groups))
                inputs = inner * expansion
            inner *= 2
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(inputs, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.max_pool2d(self.stem(x), 3, 2, 1))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class InvertedResidual(nn.Module):
    """Widen by 1x1, filter each channel alone, narrow by 1x1 without an activation."""

    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        inner = inputs * expand
        widen = [conv_bn(inputs, inner, 1)] if expand > 1 else []
        self.layers = nn.Sequential(
            *widen,
            conv_bn(inner, inner, 3, stride, groups=inner),
            nn.Conv2d(inner, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


class MobileNetV2(nn.Module):
    """Inverted residuals with depthwise convolutions, few of them and narrow."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            conv_bn(3, 8, stride=2),
            InvertedResidual(8, 6, 1, 1),
            InvertedResidual(6, 10, 2, 4),
            InvertedResidual(10, 10, 1, 4),
            InvertedResidual(10, 12, 2, 3),
            InvertedResidual(12, 12, 1, 3),
            conv_bn(12, 30, 1),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(30, 7))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean([2, 3]))


class DenseLayer(nn.Module):
    """Reads everything made so far, and makes a few channels more."""

    def __init__(self, inputs: int, growth: int, inner: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, growth, 3, 1, 1, bias=False)

    def forward(self, parts: list[Tensor]) -> Tensor:
        x = self.conv1(F.relu(self.norm1(torch.cat(parts, 1))))
        return self.conv2(F.relu(self.norm2(x)))


class DenseNet(nn.Module):
    """Two dense blocks with a transition between them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 7, 3, 1, 1, bias=False)
        self.block1 = nn.ModuleList(DenseLayer(7 + 5 * n, 5, 9) for n in range(4))
        self.transition = nn.Sequential(
            nn.BatchNorm2d(27), nn.ReLU(), nn.Conv2d(27, 13, 1, bias=False), nn.AvgPool2d(2)
        )
        self.block2 = nn.ModuleList(DenseLayer(13 + 4 * n, 4, 11) for n in range(3))
        self.norm = nn.BatchNorm2d(25)
        self.head = Head(25, 6)

    def dense(self, x: Tensor, layers: nn.ModuleList) -> Tensor:
        parts = [x]
        for layer in layers:
            parts.append(layer(parts))
        return torch.cat(parts, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.transition(self.dense(self.stem(x), self.block1))
        return self.head(F.relu(self.norm(self.dense(x, self.block2))))


class SqueezeExcite(nn.Module):
    """Scales each channel by a gate made from all channels' means."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.down = nn.Linear(channels, inner)
        self.up = nn.Linear(inner, channels)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, _, _ = x.shape
        gate = F.adaptive_avg_pool2d(x, 1).view(batch, channels)
        gate = torch.sigmoid(self.up(F.relu(self.down(gate))))
        return x * gate.view(batch, channels, 1, 1)


class SENet(nn.Module):
    """A residual block whose branch is squeezed and excited."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 12)
        self.conv1 = conv_bn(12, 10)
        self.conv2 = nn.Conv2d(10, 12, 3, 1, 1)
        self.bn = nn.BatchNorm2d(12)
        self.gate = SqueezeExcite(12, 5)
        self.head = Head(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(F.relu(x + self.gate(self.bn(self.conv2(self.conv1(x))))))


class Inception(nn.Module):
    """Four branches of different depth side by side, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 9)
        self.first = nn.ModuleList(self.branches(9, 4, 6, 5, 3))
        self.second = nn.ModuleList(self.branches(18, 5, 7, 3, 4))
        self.head = Head(19, 6)

    @staticmethod
    def branches(inputs: int, a: int, b: int, c: int, d: int) -> list[nn.Module]:
        return [
            conv_bn(inputs, a, 1),
            nn.Sequential(conv_bn(inputs, b + 2, 1), conv_bn(b + 2, b, 3)),
            nn.Sequential(conv_bn(inputs, c + 1, 1), conv_bn(c + 1, c, 5)),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_bn(inputs, d, 1)),
        ]

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.cat([branch(x) for branch in self.first], 1)
        x = torch.cat([branch(x) for branch in self.second], 1)
        return self.head(x)


class UNet(nn.Module):
    """Down twice and up twice, by transposed convolution or interpolation; skips concatenated."""

    def __init__(self, transposed: bool) -> None:
        super().__init__()
        self.down1 = conv_bn(3, 6)
        self.down2 = conv_bn(6, 10)
        self.middle = conv_bn(10, 14)
        self.up2: nn.Module = nn.Upsample(scale_factor=2, mode="bilinear")
        self.up1: nn.Module = nn.Upsample(scale_factor=2, mode="nearest")
        above2, above1 = 14, 8
        if transposed:
            above2, above1 = 9, 5
            self.up2 = nn.ConvTranspose2d(14, above2, 2, 2)
            self.up1 = nn.ConvTranspose2d(8, above1, 4, 2, 1)
        self.join2 = conv_bn(above2 + 10, 8)
        self.join1 = conv_bn(above1 + 6, 7)
        self.out = nn.Conv2d(7, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        x = self.middle(F.max_pool2d(second, 2))
        x = self.join2(torch.cat([self.up2(x), second], 1))
        x = self.join1(torch.cat([self.up1(x), first], 1))
        return self.out(x)


class PaddingShortcut(nn.Module):
    """A ResNet whose shortcut grows by zero channels instead of a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 6)
        self.conv1 = conv_bn(6, 10, stride=2)
        self.conv2 = nn.Sequential(nn.Conv2d(10, 12, 3, 1, 1), nn.BatchNorm2d(12))
        self.conv3 = conv_bn(12, 12)
        self.head = Head(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.conv2(self.conv1(x))
        short = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 4))
        x = F.relu(y + short)
        return self.head(x + self.conv3(x))


class FlattenLinear(nn.Module):
    """Each channel owns 49 inputs of the first linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv_bn(3, 6)
        self.pool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(6 * 49, 11), nn.ReLU(), nn.Dropout(), nn.Linear(11, 5)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.pool(self.conv(x)))


class FlattenChannelsLast(nn.Module):
    """Channels are the fastest index of the flattened features: what each one owns is strided."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv_bn(3, 5)
        self.fc1 = nn.Linear(5 * 9, 13)
        self.bn = nn.BatchNorm1d(13)
        self.fc2 = nn.Linear(13, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_max_pool2d(self.conv(x), 3).permute(0, 2, 3, 1)
        x = x.reshape(x.shape[0], -1)
        return self.fc2(F.relu(self.bn(self.fc1(x))))


class ViewClassifier(nn.Module):
    """The features reach the classifier by a view, with the batch or the width written out."""

    def __init__(self, literal: bool) -> None:
        super().__init__()
        self.conv = conv_bn(3, 8)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8, 5)
        self.literal = literal

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.conv(x))
        return self.fc(x.view(-1, 8) if self.literal else x.view(x.size(0), -1))


class Highway(nn.Module):
    """Three linear layers whose outputs are gated against the input itself."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(9, 14)
        self.change = nn.ModuleList(nn.Linear(14, 14) for _ in range(2))
        self.gate = nn.ModuleList(nn.Linear(14, 14) for _ in range(2))
        self.head = nn.Linear(14, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for change, gate in zip(self.change, self.gate, strict=True):
            open_ = torch.sigmoid(gate(x))
            x = open_ * torch.tanh(change(x)) + (1 - open_) * x
        return self.head(x)


class FiLM(nn.Module):
    """A condition scales and shifts the channels of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.condition = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 16))
        self.conv1 = conv_bn(3, 8)
        self.conv2 = conv_bn(8, 6)
        self.head = Head(6, 5)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        scale, shift = self.condition(condition)[:, :, None, None].chunk(2, 1)
        return self.head(self.conv2(self.conv1(x) * scale + shift))
