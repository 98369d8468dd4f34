"""MobileNetV2 for ImageNet: inverted residuals, with torchvision's parameter names."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from obc.models.initialisation import kaiming
from obc.models.widths import multiple_of_8

# Expansion, channels, blocks and first stride of each stage: table 2 of Sandler et al. (2018).
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """Expand by 1x1, filter each channel by 3x3, project by 1x1; added to the input if it fits."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = expansion * inputs
        layers = [convolution(inputs, inner, 1)] if expansion != 1 else []
        self.conv = nn.Sequential(
            *layers,
            convolution(inner, inner, 3, stride, groups=inner),
            nn.Conv2d(inner, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return x + y if self.residual else y


class MobileNetV2(nn.Module):
    """A convolution, seven stages of inverted residuals, a 1x1 convolution, and a classifier."""

    def __init__(self, num_classes: int, in_channels: int, width_mult: float) -> None:
        super().__init__()
        inputs = multiple_of_8(32 * width_mult)
        layers: list[nn.Module] = [convolution(in_channels, inputs, 3, 2)]
        for expansion, channels, blocks, first_stride in STAGES:
            outputs = multiple_of_8(channels * width_mult)
            for block in range(blocks):
                stride = first_stride if block == 0 else 1
                layers.append(InvertedResidual(inputs, outputs, stride, expansion))
                inputs = outputs
        last = multiple_of_8(1280 * max(1.0, width_mult))
        self.features = nn.Sequential(*layers, convolution(inputs, last, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, num_classes))
        kaiming(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.features(x), 1).flatten(1)
        logits: Tensor = self.classifier(x)
        return logits


def convolution(
    inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """A convolution with BN and ReLU6."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(inplace=True),
    )


def mobilenet_v2(
    num_classes: int = 1000, in_channels: int = 3, width_mult: float = 1.0
) -> MobileNetV2:
    """MobileNetV2: 0.30 B MACs at 224x224, 3.5 M parameters.

    >>> sum(p.numel() for p in mobilenet_v2().parameters())
    3504872
    """
    return MobileNetV2(num_classes, in_channels, width_mult)
