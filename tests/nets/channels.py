"""Networks that move channels about: groups, chunks, shuffles, slices, flips and folds."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.nets.blocks import Head, conv_bn


class GroupedNet(nn.Module):
    """Two grouped convolutions in a row, between plain ones."""

    def __init__(self, inner: int, outer: int, groups: int) -> None:
        super().__init__()
        self.stem = conv_bn(3, 7)
        self.into = conv_bn(7, inner, 1)
        self.grouped1 = conv_bn(inner, outer, groups=groups)
        self.grouped2 = conv_bn(outer, inner, groups=groups)
        self.head = Head(inner, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.grouped2(self.grouped1(self.into(self.stem(x)))))


class GroupsOfTwoKinds(nn.Module):
    """Convolutions of 2 and of 3 groups read the same 12 channels, so their borders cross."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 12)
        self.two = conv_bn(12, 8, groups=2)
        self.three = conv_bn(12, 9, groups=3)
        self.head = Head(17, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(torch.cat([self.two(x), self.three(x)], 1))


class DepthwiseMultiplier(nn.Module):
    """Each channel is filtered twice, so that it makes two neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 7)
        self.depthwise = nn.Conv2d(7, 14, 3, 1, 1, groups=7)
        self.bn = nn.BatchNorm2d(14)
        self.pointwise = conv_bn(14, 9, 1)
        self.head = Head(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pointwise(F.relu(self.bn(self.depthwise(self.stem(x))))))


class GroupedTransposed(nn.Module):
    """A transposed convolution in 3 groups: its weight's first dimension is what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 12, stride=2)
        self.up = nn.ConvTranspose2d(12, 15, 3, 2, 1, output_padding=1, groups=3)
        self.bn = nn.BatchNorm2d(15)
        self.depthwise = nn.ConvTranspose2d(15, 15, 2, 2, groups=15)
        self.out = nn.Conv2d(15, 4, 3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.depthwise(F.relu(self.bn(self.up(self.stem(x))))))


def shuffle(x: Tensor, groups: int) -> Tensor:
    """Interleave the channels of the groups."""
    batch, channels, height, width = x.shape
    x = x.view(batch, groups, channels // groups, height, width)
    return x.transpose(1, 2).reshape(batch, channels, height, width)


class ShuffleUnit(nn.Module):
    """Half of the channels pass by, the others are worked on, and both are interleaved."""

    def __init__(self, half: int, inner: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            conv_bn(half, inner, 1),
            nn.Conv2d(inner, inner, 3, 1, 1, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
            conv_bn(inner, half, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        kept, worked = x.chunk(2, 1)
        return shuffle(torch.cat([kept, self.branch(worked)], 1), 2)


class ShuffleNet(nn.Module):
    """Two shuffle units after each other, so that a channel meets both halves."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 12)
        self.units = nn.Sequential(ShuffleUnit(6, 8), ShuffleUnit(6, 10))
        self.last = conv_bn(12, 9, 1)
        self.head = Head(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(self.units(self.stem(x))))


class ShuffledGroups(nn.Module):
    """The first ShuffleNet's unit: grouped convolution, shuffle, depthwise, grouped convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 12)
        self.reduce = conv_bn(12, 18, 1, groups=3)
        self.depthwise = conv_bn(18, 18, 3, groups=18)
        self.expand = nn.Conv2d(18, 12, 1, groups=3)
        self.head = Head(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(F.relu(x + self.expand(self.depthwise(shuffle(self.reduce(x), 3)))))


class C2f(nn.Module):
    """A block that splits in two, refines one half again and again, and joins all that was made."""

    def __init__(self, inputs: int, outputs: int, half: int, depth: int) -> None:
        super().__init__()
        self.cv1 = nn.Sequential(
            nn.Conv2d(inputs, 2 * half, 1), nn.BatchNorm2d(2 * half), nn.SiLU()
        )
        self.cv2 = nn.Sequential(
            nn.Conv2d((2 + depth) * half, outputs, 1), nn.BatchNorm2d(outputs), nn.SiLU()
        )
        self.m = nn.ModuleList(
            nn.Sequential(conv_bn(half, half + 1), conv_bn(half + 1, half)) for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.cv1(x).chunk(2, 1))
        for step in self.m:
            parts.append(parts[-1] + step(parts[-1]))
        return self.cv2(torch.cat(parts, 1))


class Detector(nn.Module):
    """A stem of sliced pixels, C2f blocks, pyramid pooling and a dictionary of two scales."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(12, 9)
        self.c2f1 = C2f(9, 10, 4, 2)
        self.down = conv_bn(10, 13, stride=2)
        self.c2f2 = C2f(13, 14, 5, 1)
        self.before = conv_bn(14, 7, 1)
        self.after = conv_bn(28, 11, 1)
        self.fine = nn.Conv2d(10, 6, 1)
        self.coarse = nn.Conv2d(11, 6, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        corners = [x[..., i::2, j::2] for i in (0, 1) for j in (0, 1)]
        fine = self.c2f1(self.stem(torch.cat(corners, 1)))
        pools = [self.before(self.c2f2(self.down(fine)))]
        for _ in range(3):
            pools.append(F.max_pool2d(pools[-1], 5, 1, 2))
        return {"fine": self.fine(fine), "coarse": self.coarse(self.after(torch.cat(pools, 1)))}


class PixelShuffle(nn.Module):
    """Four channels become one of twice the size, and later one becomes four again."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv_bn(3, 7)
        self.conv2 = nn.Conv2d(7, 20, 3, 1, 1)
        self.up = nn.PixelShuffle(2)
        self.conv3 = conv_bn(5, 6)
        self.down = nn.PixelUnshuffle(2)
        self.conv4 = nn.Conv2d(24, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv4(self.down(self.conv3(F.relu(self.up(self.conv2(self.conv1(x)))))))


class SpaceToDepth(nn.Module):
    """The same rearrangement by hand, and patches by unfold."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv_bn(3, 5)
        self.conv2 = conv_bn(20, 6, 1)
        self.fc = nn.Linear(6 * 4, 7)
        self.head = nn.Linear(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        batch, channels, height, width = x.shape
        x = x.view(batch, channels, height // 2, 2, width // 2, 2).permute(0, 3, 5, 1, 2, 4)
        x = self.conv2(x.reshape(batch, 4 * channels, height // 2, width // 2))
        x = F.unfold(x, 2, stride=2).transpose(1, 2)
        return self.head(F.relu(self.fc(x)).mean(1))


class SplitLiteral(nn.Module):
    """The sizes of a split are written out, so that the code holds only for the full width."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 9)
        self.left = conv_bn(4, 6)
        self.right = conv_bn(5, 7)
        self.head = Head(13, 5)

    def forward(self, x: Tensor) -> Tensor:
        left, right = torch.split(self.stem(x), [4, 5], 1)
        return self.head(torch.cat([self.left(left), self.right(right)], 1))


class IndexLiteral(nn.Module):
    """Channels are picked by a written list, by a step, and in the order a buffer says."""

    order: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 8)
        self.picked = conv_bn(3, 6)
        self.stepped = conv_bn(4, 7)
        self.ordered = conv_bn(8, 5)
        self.register_buffer("order", torch.tensor([3, 1, 7, 0, 2, 6, 4, 5]))
        self.free = conv_bn(18, 11)
        self.head = Head(11, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        parts = [self.picked(x[:, [0, 5, 2]]), self.stepped(x[:, ::2])]
        parts.append(self.ordered(x.index_select(1, self.order)))
        return self.head(self.free(torch.cat(parts, 1)))


class InPlaceSlice(nn.Module):
    """A few channels of a wider tensor are added to, others overwritten, through views."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Sequential(nn.Conv2d(3, 10, 3, 1, 1), nn.BatchNorm2d(10))
        self.narrow = conv_bn(3, 4)
        self.other = nn.Conv2d(3, 3, 1)
        self.last = conv_bn(10, 7)
        self.head = Head(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.wide(x)
        y[:, :4] += self.narrow(x)
        y[:, 6:9] = self.other(x)
        y[:, 9].mul_(1.5)
        return self.head(self.last(F.relu(y)))


class CatTwice(nn.Module):
    """The same channels stand twice in a concatenation, once with zeros between."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 6)
        self.join = conv_bn(15, 8)
        self.head = Head(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        zeros = x.new_zeros(x.shape[0], 3, *x.shape[2:])
        return self.head(self.join(torch.cat([x, zeros, x.abs()], 1)))


class FlipTie(nn.Module):
    """Adding a tensor's mirror image ties channels in pairs; adding its rotation ties them all."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv_bn(3, 8)
        self.conv2 = conv_bn(8, 6)
        self.conv3 = conv_bn(6, 7)
        self.head = Head(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        x = self.conv2(x + x.flip(1))
        x = self.conv3(x + x.roll(1, 1))
        return self.head(x)


class OuterProduct(nn.Module):
    """Every pair of two layers' channels becomes one input of the classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(6, 5)
        self.right = nn.Linear(6, 7)
        self.head = nn.Linear(35, 4)

    def forward(self, x: Tensor) -> Tensor:
        pairs = torch.tanh(self.left(x))[:, :, None] * torch.tanh(self.right(x))[:, None, :]
        return self.head(pairs.flatten(1))


class SoftmaxOverChannels(nn.Module):
    """Softmax, sorting and cumulative sums over channels mix what a mask would not remove."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 8)
        self.scores = nn.Conv2d(8, 6, 1)
        self.values = nn.Conv2d(8, 6, 1)
        self.running = nn.Conv2d(8, 5, 1)
        self.sorted = nn.Conv2d(8, 7, 1)
        self.free = conv_bn(18, 9)
        self.head = Head(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        mixed = self.scores(x).softmax(1) * self.values(x)
        running = self.running(x).cumsum(1)
        ordered = self.sorted(x).sort(1).values
        return self.head(self.free(torch.cat([mixed, running, ordered], 1)))


class CBAM(nn.Module):
    """Channel attention from both poolings, spatial attention from mean and maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 10)
        # SiLU: of four rectified units at a single position, all may be silent.
        self.mlp = nn.Sequential(nn.Conv2d(10, 4, 1), nn.SiLU(), nn.Conv2d(4, 10, 1))
        self.spatial = nn.Conv2d(2, 1, 3, 1, 1)
        self.last = conv_bn(10, 7)
        self.head = Head(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        pooled = self.mlp(F.adaptive_avg_pool2d(x, 1)) + self.mlp(F.adaptive_max_pool2d(x, 1))
        x = x * torch.sigmoid(pooled)
        summary = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
        return self.head(self.last(x * torch.sigmoid(self.spatial(summary))))


class Dilated1d(nn.Module):
    """Dilated temporal convolutions with gated activations and skips."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(3, 8, 1)
        self.filters = nn.ModuleList(nn.Conv1d(8, 6, 3, padding=d, dilation=d) for d in (1, 2, 4))
        self.gates = nn.ModuleList(nn.Conv1d(8, 6, 3, padding=d, dilation=d) for d in (1, 2, 4))
        self.residual = nn.ModuleList(
            nn.Conv1d(6, 8, 1) for _ in range(2)
        )  # the last is only skipped
        self.skip = nn.ModuleList(nn.Conv1d(6, 7, 1) for _ in range(3))
        self.up = nn.ConvTranspose1d(7, 5, 2, 2)
        self.out = nn.Conv1d(5, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        total: Tensor | None = None
        for number, (filter_, gate) in enumerate(zip(self.filters, self.gates, strict=True)):
            y = torch.tanh(filter_(x)) * torch.sigmoid(gate(x))
            if number < len(self.residual):
                x = x + self.residual[number](y)
            skip = self.skip[number](y)
            total = skip if total is None else total + skip
        return self.out(F.relu(self.up(F.relu(total))))


class Volume3d(nn.Module):
    """Three-dimensional convolutions, one dilated, with BN and a transposed one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(2, 5, 3, padding=1)
        self.bn1 = nn.BatchNorm3d(5)
        self.conv2 = nn.Conv3d(5, 7, 3, padding=2, dilation=2)
        self.up = nn.ConvTranspose3d(7, 6, 2, 2)
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool3d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.relu(self.up(F.leaky_relu(self.conv2(x), 0.1)))
        return self.fc(F.adaptive_avg_pool3d(x, 1).flatten(1))
