"""VGGs for 32x32 images: 3x3 convolutions with BN, pooled thrice, and one linear layer."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from obc.models.initialisation import kaiming

# Widths as multiples of the first one. Only three poolings, so that the last convolutions still
# see 4x4 positions of a 32x32 image: with five they would see 2x2 and 1x1.
LAYERS_16 = (1, 1, "pool", 2, 2, "pool", 4, 4, 4, "pool", 8, 8, 8, 8, 8, 8)
LAYERS_19 = (1, 1, "pool", 2, 2, "pool", 4, 4, 4, 4, "pool", 8, 8, 8, 8, 8, 8, 8, 8)


class VGG(nn.Module):
    """A plain stack of convolution, BN and ReLU, its last positions averaged for one classifier."""

    def __init__(
        self, layers: tuple[int | str, ...], num_classes: int, in_channels: int, width: int
    ) -> None:
        super().__init__()
        features: list[nn.Module] = []
        inputs = in_channels
        for step in layers:
            if isinstance(step, str):
                features.append(nn.MaxPool2d(2))
                continue
            outputs = step * width
            features += [
                nn.Conv2d(inputs, outputs, 3, 1, 1),
                nn.BatchNorm2d(outputs),
                nn.ReLU(inplace=True),
            ]
            inputs = outputs
        self.features = nn.Sequential(*features)
        self.classifier = nn.Linear(inputs, num_classes)
        kaiming(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.features(x), 1).flatten(1)
        logits: Tensor = self.classifier(x)
        return logits


def vgg16(num_classes: int = 100, in_channels: int = 3, width: int = 64) -> VGG:
    """VGG16: 0.40 B MACs at 32x32; `width=16` is a quarter of it, with a sixteenth of the MACs."""
    return VGG(LAYERS_16, num_classes, in_channels, width)


def vgg19(num_classes: int = 100, in_channels: int = 3, width: int = 64) -> VGG:
    """VGG19: 0.51 B MACs at 32x32."""
    return VGG(LAYERS_19, num_classes, in_channels, width)
