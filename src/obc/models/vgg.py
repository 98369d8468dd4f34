"""VGG19 for 32x32 images: sixteen 3x3 convolutions with BN, pooled thrice, and one linear layer."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

# Widths as multiples of the first one. Only three poolings, so that the last eight convolutions
# still see 4x4 positions of a 32x32 image: with five they would see 2x2 and 1x1.
LAYERS = (1, 1, "pool", 2, 2, "pool", 4, 4, 4, 4, "pool", 8, 8, 8, 8, 8, 8, 8, 8)


class VGG(nn.Module):
    """A plain stack of convolution, BN and ReLU, its last positions averaged for one classifier."""

    def __init__(self, num_classes: int, in_channels: int, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = in_channels
        for step in LAYERS:
            if isinstance(step, str):
                layers.append(nn.MaxPool2d(2))
                continue
            outputs = step * width
            layers += [
                nn.Conv2d(inputs, outputs, 3, 1, 1),
                nn.BatchNorm2d(outputs),
                nn.ReLU(inplace=True),
            ]
            inputs = outputs
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(inputs, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.features(x), 1).flatten(1)
        logits: Tensor = self.classifier(x)
        return logits


def vgg19(num_classes: int = 100, in_channels: int = 3, width: int = 64) -> VGG:
    """VGG19: 0.51 B MACs at 32x32."""
    return VGG(num_classes, in_channels, width)
