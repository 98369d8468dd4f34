"""ResNets for 32x32 images whose shortcuts are padded with zeros where shapes change.

This is option A of He et al., *Deep Residual Learning for Image Recognition* (2016), with the
parameter names of the public CIFAR-10 weights of akamaster/pytorch_resnet_cifar10. Those expect
pixels from 0 to 1, normalised by mean .485 .456 .406 and standard deviation .229 .224 .225.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from obc.models.initialisation import kaiming
from obc.models.resnet import Trunk


class Padding(nn.Module):
    """Every other position of the input, between channels that are zero.

    The zeros are buffers that pruning narrows along with the channels they are added to; as plain
    numbers they would fix half the channels of a stage. They are not saved with the weights.
    """

    before: Tensor
    after: Tensor

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        before = (outputs - inputs) // 2
        after = outputs - inputs - before
        self.register_buffer("before", torch.zeros(1, before, 1, 1), persistent=False)
        self.register_buffer("after", torch.zeros(1, after, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, :: self.stride, :: self.stride]
        sizes = (x.shape[0], -1, *x.shape[2:])
        return torch.cat([self.before.expand(sizes), x, self.after.expand(sizes)], dim=1)


class PaddedResNet(Trunk):
    """A ResNet of 6 * blocks + 2 layers without parameters in its shortcuts."""

    def __init__(self, blocks: int, num_classes: int, in_channels: int, width: int) -> None:
        super().__init__(blocks, in_channels, width, Padding)
        self.linear = nn.Linear(4 * width, num_classes)
        kaiming(self)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(super().forward(x))
        return logits


def resnet20_padded(num_classes: int = 10, in_channels: int = 3, width: int = 16) -> PaddedResNet:
    """ResNet-20 with padded shortcuts: 0.04 B MACs at 32x32, 0.27 M parameters.

    >>> sum(p.numel() for p in resnet20_padded().parameters())
    269722
    """
    return PaddedResNet(3, num_classes, in_channels, width)


def resnet56_padded(num_classes: int = 10, in_channels: int = 3, width: int = 16) -> PaddedResNet:
    """ResNet-56 with padded shortcuts: 0.13 B MACs at 32x32, 0.85 M parameters.

    >>> sum(p.numel() for p in resnet56_padded().parameters())
    853018
    """
    return PaddedResNet(9, num_classes, in_channels, width)
