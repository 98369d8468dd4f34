"""YOLOv7 and YOLOv7-tiny: an ELAN backbone, a path down and up again, three resolutions of boxes.

The tables of layers are those of the paper's authors; published weights load through
`yolov7_weights.load_published`. Pixels go from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from obc.errors import ObcError
from obc.models.widths import multiple_of_8
from obc.models.yolov7_layers import (
    SPPCSPC,
    Convolution,
    Detect,
    Down,
    Elan,
    RepConv,
    TinySPP,
)

# Widths and heights in pixels for strides 8, 16 and 32.
ANCHORS = ((12, 16, 19, 36, 40, 28), (36, 75, 76, 55, 72, 146), (142, 110, 192, 243, 459, 401))
TINY_ANCHORS = ((9, 6, 13, 16, 29, 11), (29, 28, 66, 26, 51, 62), (115, 54, 134, 119, 308, 147))

# Where each part begins in the published tables of layers.
POSITIONS = {
    **{"stem.0": 0, "stem.1": 1, "stem.2": 2, "stem.3": 3},
    **{"stage2": 4, "pool3": 12, "stage3": 17, "pool4": 25, "stage4": 30, "pool5": 38},
    **{"stage5": 43, "spp": 51, "reduce5": 52, "lateral4": 54, "up4": 56, "reduce4": 64},
    **{"lateral3": 66, "up3": 68, "down4": 76, "merge4": 81, "down5": 89, "merge5": 94},
    **{"out3": 102, "out4": 103, "out5": 104, "detect": 105},
}
TINY_POSITIONS = {
    **{"stem.0": 0, "stem.1": 1, "stage2": 2, "stage3": 9, "stage4": 16, "stage5": 23, "spp": 29},
    **{"reduce5": 38, "lateral4": 40, "up4": 42, "reduce4": 48, "lateral3": 50, "up3": 52},
    **{"down4": 58, "merge4": 60, "down5": 66, "merge5": 68},
    **{"out3": 74, "out4": 75, "out5": 76, "detect": 77},
}


class YOLOv7(nn.Module):
    """The way through either network; the parts say how wide and how deep it is.

    `positions` says where each part begins in the published table of layers.
    """

    stem: nn.Module
    stage2: nn.Module
    pool3: nn.Module
    stage3: nn.Module
    pool4: nn.Module
    stage4: nn.Module
    pool5: nn.Module
    stage5: nn.Module
    spp: nn.Module
    reduce5: nn.Module
    lateral4: nn.Module
    up4: nn.Module
    reduce4: nn.Module
    lateral3: nn.Module
    up3: nn.Module
    down4: nn.Module
    merge4: nn.Module
    down5: nn.Module
    merge5: nn.Module
    out3: nn.Module
    out4: nn.Module
    out5: nn.Module
    detect: Detect

    def __init__(self, parts: Mapping[str, nn.Module], positions: Mapping[str, int]) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self.positions = dict(positions)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Maps of boxes as `Detect` gives them; `decoded` turns them into boxes."""
        p3 = self.stage3(self.pool3(self.stage2(self.stem(x))))
        p4 = self.stage4(self.pool4(p3))
        p5 = self.spp(self.stage5(self.pool5(p4)))
        u4 = self.up4(torch.cat([self.lateral4(p4), doubled(self.reduce5(p5))], dim=1))
        u3 = self.up3(torch.cat([self.lateral3(p3), doubled(self.reduce4(u4))], dim=1))
        d4 = self.merge4(torch.cat([self.down4(u3), u4], dim=1))
        d5 = self.merge5(torch.cat([self.down5(d4), p5], dim=1))
        maps: list[Tensor] = self.detect([self.out3(u3), self.out4(d4), self.out5(d5)])
        return maps

    def decoded(self, maps: list[Tensor]) -> Tensor:
        """Boxes [images, boxes, 5 + classes]: centre, width and height in pixels, probabilities."""
        boxes = [
            boxes_of(m, anchors, stride).flatten(1, 3)
            for m, anchors, stride in zip(
                maps, self.detect.anchors, self.detect.strides, strict=True
            )
        ]
        return torch.cat(boxes, dim=1)

    def fuse(self) -> YOLOv7:
        """Fold norms, RepConv and implicit layers, in place: the same outputs in eval mode."""
        if self.training:
            raise ObcError("a network in training mode cannot be fused; call eval() first")
        for module in list(self.modules()):
            if isinstance(module, Convolution | RepConv | Detect):
                module.fuse()
        return self


def boxes_of(maps: Tensor, anchors: Tensor, stride: int) -> Tensor:
    """Boxes of one resolution, in the layout of the map.

    Centre (2σ(t) − ½ + cell) · stride, size (2σ(t))² · anchor · stride, probabilities σ(t).
    """
    height, width = maps.shape[2:4]
    rows = torch.arange(height, device=maps.device, dtype=maps.dtype).view(-1, 1).expand(-1, width)
    columns = torch.arange(width, device=maps.device, dtype=maps.dtype).expand(height, -1)
    cells = torch.stack([columns, rows], dim=-1)
    share = maps.sigmoid()
    centres = (2 * share[..., :2] - 0.5 + cells) * stride
    sizes = (2 * share[..., 2:4]) ** 2 * anchors[:, None, None].to(maps) * stride
    return torch.cat([centres, sizes, share[..., 4:]], dim=-1)


def doubled(x: Tensor) -> Tensor:
    """Twice the resolution, each position repeated."""
    return F.interpolate(x, scale_factor=2.0, mode="nearest")


def yolov7(num_classes: int = 80, in_channels: int = 3, width: float = 1.0) -> YOLOv7:
    """YOLOv7: 36.9 M parameters and 104.7 GFLOPs at 640x640 once fused.

    `width` scales all channels, rounded to multiples of 8.

    >>> [tuple(m.shape) for m in yolov7(width=0.125)(torch.zeros(1, 3, 64, 64))]
    [(1, 3, 8, 8, 85), (1, 3, 4, 4, 85), (1, 3, 2, 2, 85)]
    """
    act = partial(nn.SiLU, inplace=True)

    def c(channels: int) -> int:
        return multiple_of_8(channels * width)

    def conv(inputs: int, outputs: int, size: int = 1, stride: int = 1) -> Convolution:
        return Convolution(inputs, c(outputs), size, stride, act)

    def backbone(inputs: int, inner: int, outputs: int) -> Elan:
        return Elan(inputs, c(inner), c(inner), c(outputs), act, 4, (0, 1, 3, 5))

    def head(inputs: int, outputs: int) -> Elan:
        return Elan(inputs, c(outputs), c(outputs // 2), c(outputs), act, 4, range(6))

    stem = (conv(in_channels, 32, 3), conv(c(32), 64, 3, 2), conv(c(64), 64, 3))
    parts = {
        "stem": nn.Sequential(*stem, conv(c(64), 128, 3, 2)),
        "stage2": backbone(c(128), 64, 256),
        "pool3": Down(c(256), c(128), act),
        "stage3": backbone(2 * c(128), 128, 512),
        "pool4": Down(c(512), c(256), act),
        "stage4": backbone(2 * c(256), 256, 1024),
        "pool5": Down(c(1024), c(512), act),
        "stage5": backbone(2 * c(512), 256, 1024),
        "spp": SPPCSPC(c(1024), c(512), act),
        "reduce5": conv(c(512), 256),
        "lateral4": conv(c(1024), 256),
        "up4": head(2 * c(256), 256),
        "reduce4": conv(c(256), 128),
        "lateral3": conv(c(512), 128),
        "up3": head(2 * c(128), 128),
        "down4": Down(c(128), c(128), act),
        "merge4": head(2 * c(128) + c(256), 256),
        "down5": Down(c(256), c(256), act),
        "merge5": head(2 * c(256) + c(512), 512),
        "out3": RepConv(c(128), c(256), act),
        "out4": RepConv(c(256), c(512), act),
        "out5": RepConv(c(512), c(1024), act),
        "detect": Detect((c(256), c(512), c(1024)), num_classes, ANCHORS),
    }
    return YOLOv7(parts, POSITIONS)


def yolov7_tiny(num_classes: int = 80, in_channels: int = 3, width: float = 1.0) -> YOLOv7:
    """YOLOv7-tiny: 6.2 M parameters and 13.8 GFLOPs at 640x640 once fused.

    `width` scales all channels, rounded to multiples of 8.

    >>> [tuple(m.shape) for m in yolov7_tiny(3, width=0.25)(torch.zeros(1, 3, 64, 64))]
    [(1, 3, 8, 8, 8), (1, 3, 4, 4, 8), (1, 3, 2, 2, 8)]
    """
    act = partial(nn.LeakyReLU, 0.1, inplace=True)

    def c(channels: int) -> int:
        return multiple_of_8(channels * width)

    def conv(inputs: int, outputs: int, size: int = 1, stride: int = 1) -> Convolution:
        return Convolution(inputs, c(outputs), size, stride, act)

    def elan(inputs: int, outputs: int) -> Elan:
        inner = c(outputs // 2)
        return Elan(inputs, inner, inner, c(outputs), act, 2, range(4))

    parts = {
        "stem": nn.Sequential(conv(in_channels, 32, 3, 2), conv(c(32), 64, 3, 2)),
        "stage2": elan(c(64), 64),
        "pool3": nn.MaxPool2d(2),
        "stage3": elan(c(64), 128),
        "pool4": nn.MaxPool2d(2),
        "stage4": elan(c(128), 256),
        "pool5": nn.MaxPool2d(2),
        "stage5": elan(c(256), 512),
        "spp": TinySPP(c(512), c(256), act),
        "reduce5": conv(c(256), 128),
        "lateral4": conv(c(256), 128),
        "up4": elan(2 * c(128), 128),
        "reduce4": conv(c(128), 64),
        "lateral3": conv(c(128), 64),
        "up3": elan(2 * c(64), 64),
        "down4": conv(c(64), 128, 3, 2),
        "merge4": elan(2 * c(128), 128),
        "down5": conv(c(128), 256, 3, 2),
        "merge5": elan(2 * c(256), 256),
        "out3": conv(c(64), 128, 3),
        "out4": conv(c(128), 256, 3),
        "out5": conv(c(256), 512, 3),
        "detect": Detect((c(128), c(256), c(512)), num_classes, TINY_ANCHORS),
    }
    return YOLOv7(parts, TINY_POSITIONS)
