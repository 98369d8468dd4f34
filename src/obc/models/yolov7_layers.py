"""The layers of YOLOv7: ELAN, MP, SPPCSPC, RepConv and the head with its implicit layers.

Written from the description in C.-Y. Wang, A. Bochkovskiy and H.-Y. M. Liao, *YOLOv7: Trainable
bag-of-freebies sets new state-of-the-art for real-time object detectors* (CVPR 2023), and from the
published table of layers. A block says in `offsets` at which place of that table, counted from its
own first, each of its parts stands: `yolov7_weights` needs it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

Activation = Callable[[], nn.Module]


class Convolution(nn.Module):
    """A convolution without bias, BN, and an activation."""

    def __init__(
        self, inputs: int, outputs: int, size: int, stride: int, activation: Activation
    ) -> None:
        super().__init__()
        self.conv, self.bn = normed(inputs, outputs, size, stride)
        self.act = activation()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.act(self.bn(self.conv(x)))
        return y

    def fuse(self) -> None:
        """Fold the norm into the convolution."""
        if not isinstance(self.bn, nn.Identity):
            self.conv, self.bn = folded(self.conv, self.bn), nn.Identity()


class Elan(nn.Module):
    """Two 1x1 convolutions, a chain of 3x3 after the second, and a last 1x1 that reads the taps.

    The taps are numbered 0 and 1 for the two, then along the chain; the last one comes first.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        inner: int,
        outputs: int,
        activation: Activation,
        depth: int,
        taps: Sequence[int],
    ) -> None:
        super().__init__()
        self.first = Convolution(inputs, width, 1, 1, activation)
        self.second = Convolution(inputs, width, 1, 1, activation)
        widths = [width, width, *[inner] * depth]
        self.chain = nn.ModuleList(
            Convolution(a, b, 3, 1, activation) for a, b in pairwise(widths[1:])
        )
        self.taps = tuple(taps)
        self.last = Convolution(sum(widths[tap] for tap in taps), outputs, 1, 1, activation)
        self.offsets = {"first": 0, "second": 1, "last": depth + 3}
        self.offsets |= {f"chain.{i}": 2 + i for i in range(depth)}

    def forward(self, x: Tensor) -> Tensor:
        features = [self.first(x), self.second(x)]
        for layer in self.chain:
            features.append(layer(features[-1]))
        y: Tensor = self.last(torch.cat([features[tap] for tap in reversed(self.taps)], dim=1))
        return y


class Down(nn.Module):
    """MP: half the resolution by a 3x3 convolution of stride 2, and beside it by max pooling."""

    offsets: ClassVar[dict[str, int]] = {"pooled": 1, "reduced": 2, "strided": 3}

    def __init__(self, inputs: int, width: int, activation: Activation) -> None:
        super().__init__()
        self.pooled = Convolution(inputs, width, 1, 1, activation)
        self.reduced = Convolution(inputs, width, 1, 1, activation)
        self.strided = Convolution(width, width, 3, 2, activation)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.pooled(F.max_pool2d(x, 2))
        return torch.cat([self.strided(self.reduced(x)), pooled], dim=1)


class SPPCSPC(nn.Module):
    """Max pooling over 5, 9 and 13 positions in one of two branches."""

    def __init__(self, inputs: int, width: int, activation: Activation) -> None:
        super().__init__()
        self.cv1 = Convolution(inputs, width, 1, 1, activation)
        self.cv2 = Convolution(inputs, width, 1, 1, activation)
        self.cv3 = Convolution(width, width, 3, 1, activation)
        self.cv4 = Convolution(width, width, 1, 1, activation)
        self.cv5 = Convolution(4 * width, width, 1, 1, activation)
        self.cv6 = Convolution(width, width, 3, 1, activation)
        self.cv7 = Convolution(2 * width, width, 1, 1, activation)

    def forward(self, x: Tensor) -> Tensor:
        y = self.cv4(self.cv3(self.cv1(x)))
        y = self.cv6(self.cv5(torch.cat([y, *pooled(y)], dim=1)))
        z: Tensor = self.cv7(torch.cat([y, self.cv2(x)], dim=1))
        return z


class TinySPP(nn.Module):
    """SPPCSPC with four convolutions, as in YOLOv7-tiny."""

    offsets: ClassVar[dict[str, int]] = {"shortcut": 0, "reduced": 1, "mixed": 6, "last": 8}

    def __init__(self, inputs: int, width: int, activation: Activation) -> None:
        super().__init__()
        self.shortcut = Convolution(inputs, width, 1, 1, activation)
        self.reduced = Convolution(inputs, width, 1, 1, activation)
        self.mixed = Convolution(4 * width, width, 1, 1, activation)
        self.last = Convolution(2 * width, width, 1, 1, activation)

    def forward(self, x: Tensor) -> Tensor:
        y = self.reduced(x)
        y = self.mixed(torch.cat([*reversed(pooled(y)), y], dim=1))
        z: Tensor = self.last(torch.cat([y, self.shortcut(x)], dim=1))
        return z


class RepConv(nn.Module):
    """A 3x3 and a 1x1 convolution, each with BN, added: one 3x3 convolution once fused.

    The identity branch of the paper needs as many outputs as inputs, which YOLOv7 never has.
    """

    def __init__(self, inputs: int, outputs: int, activation: Activation) -> None:
        super().__init__()
        self.rbr_dense: nn.Module = nn.Sequential(*normed(inputs, outputs, 3, 1))
        self.rbr_1x1: nn.Module | None = nn.Sequential(*normed(inputs, outputs, 1, 1))
        self.act = activation()

    def forward(self, x: Tensor) -> Tensor:
        y = self.rbr_dense(x)
        if self.rbr_1x1 is not None:
            y = y + self.rbr_1x1(x)
        z: Tensor = self.act(y)
        return z

    def fuse(self) -> None:
        """Fold both norms and the 1x1 convolution, as the middle of a 3x3 one, into one layer."""
        if self.rbr_1x1 is None:
            return
        dense, point = folded(*self.rbr_dense.children()), folded(*self.rbr_1x1.children())
        assert dense.bias is not None and point.bias is not None
        with torch.no_grad():
            dense.weight += F.pad(point.weight, (1, 1, 1, 1))
            dense.bias += point.bias
        self.rbr_dense, self.rbr_1x1 = dense, None


class Implicit(nn.Module):
    """Learned numbers, one per channel, that do not depend on the input."""

    def __init__(self, channels: int, mean: float) -> None:
        super().__init__()
        self.implicit = nn.Parameter(mean + 0.02 * torch.randn(1, channels, 1, 1))


class Detect(nn.Module):
    """One 1x1 convolution for each resolution, implicit numbers added before and multiplied after.

    Its outputs are maps [images, anchors, height, width, 5 + classes]: the place and size of a box
    as in `decoded`, its objectness, and its classes, all before the sigmoid.
    """

    anchors: Tensor
    strides = (8, 16, 32)

    def __init__(
        self, inputs: Sequence[int], classes: int, anchors: Sequence[Sequence[int]]
    ) -> None:
        super().__init__()
        self.classes = classes
        pixels = torch.tensor(anchors, dtype=torch.float32).view(len(anchors), -1, 2)
        # In units of the strides, as in the published weights.
        self.register_buffer("anchors", pixels / torch.tensor(self.strides).view(-1, 1, 1))
        outputs = pixels.shape[1] * (5 + classes)
        self.m = nn.ModuleList(nn.Conv2d(channels, outputs, 1) for channels in inputs)
        self.ia = nn.ModuleList(Implicit(channels, 0.0) for channels in inputs)
        self.im = nn.ModuleList(Implicit(outputs, 1.0) for _ in inputs)
        self._start_rare()

    def _start_rare(self) -> None:
        """Biases that expect eight objects in an image of 640 pixels, evenly over the classes."""
        for layer, stride in zip(self.m, self.strides, strict=True):
            assert isinstance(layer.bias, Tensor)
            with torch.no_grad():
                bias = layer.bias.view(-1, 5 + self.classes)
                bias[:, 4] += math.log(8 / (640 / stride) ** 2)
                bias[:, 5:] += math.log(0.6 / (self.classes - 0.99))

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        if not self.ia:
            return [self._map(layer(x)) for layer, x in zip(self.m, features, strict=True)]
        rows = zip(self.m, self.ia, self.im, features, strict=True)
        return [self._map(layer(x + numbers(a)) * numbers(b)) for layer, a, b, x in rows]

    def _map(self, y: Tensor) -> Tensor:
        batch, _, height, width = y.shape
        return y.view(batch, -1, 5 + self.classes, height, width).permute(0, 1, 3, 4, 2)

    def fuse(self) -> None:
        """Fold the implicit numbers into the convolutions."""
        with torch.no_grad():
            for layer, a, b in zip(self.m, self.ia, self.im, strict=False):
                assert isinstance(layer, nn.Conv2d) and layer.bias is not None
                layer.bias += layer.weight.flatten(1) @ numbers(a).flatten()
                layer.bias *= numbers(b).flatten()
                layer.weight *= numbers(b).view(-1, 1, 1, 1)
        self.ia, self.im = nn.ModuleList(), nn.ModuleList()


def normed(inputs: int, outputs: int, size: int, stride: int) -> tuple[nn.Conv2d, nn.Module]:
    """A convolution that keeps the size but for its stride, and BN with the published constants."""
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    return conv, nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.03)


def folded(conv: nn.Module, norm: nn.Module) -> nn.Conv2d:
    """One convolution in place of a convolution and the BN after it."""
    assert isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)
    return fuse_conv_bn_eval(conv, norm)


def numbers(layer: nn.Module) -> Tensor:
    """What an implicit layer has learned."""
    assert isinstance(layer, Implicit)
    return layer.implicit


def pooled(x: Tensor) -> list[Tensor]:
    """Maxima over 5, 9 and 13 positions around each."""
    return [F.max_pool2d(x, size, 1, size // 2) for size in (5, 9, 13)]
