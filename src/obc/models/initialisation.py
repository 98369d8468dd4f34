"""The weights a convolutional network starts from."""

from __future__ import annotations

from torch import nn


def kaiming(model: nn.Module) -> None:
    """Draw every convolution from a normal distribution of variance 2 / fan-out (He et al. 2015).

    >>> layer = nn.Conv2d(8, 512, 3)
    >>> kaiming(layer)
    >>> bool((layer.weight.var() * 512 * 9 - 2).abs() < 0.1)
    True
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
