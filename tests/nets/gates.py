"""Networks about what stands between layers: gates, norms, per-channel parameters, buffers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.nets.blocks import Head, conv_bn


class GatedMLP(nn.Module):
    """Two gated residual layers; their halves are parted in one of seven ways."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.stem = nn.Linear(6, 10)
        outputs = 13 if kind == "separate" else 26
        self.gate_up = nn.ModuleList(nn.Linear(10, outputs) for _ in range(2))
        if kind == "separate":
            self.up = nn.ModuleList(nn.Linear(10, 13) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(13, 10) for _ in range(2))
        self.head = nn.Linear(10, 5)

    def gated(self, h: Tensor) -> Tensor:
        if self.kind == "functional":
            return F.glu(h, -1)
        if self.kind == "chunk":
            gate, up = h.chunk(2, -1)
        elif self.kind == "slice":
            gate, up = h[..., : h.shape[-1] // 2], h[..., h.shape[-1] // 2 :]
        elif self.kind == "split":
            gate, up = h.split(h.shape[-1] // 2, dim=-1)
        elif self.kind == "unflatten":
            gate, up = h.unflatten(-1, (2, -1)).unbind(-2)
        else:  # interleaved: neighbours are partners
            gate, up = h[..., ::2], h[..., 1::2]
        return F.silu(gate) * up

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for number, (gate_up, down) in enumerate(zip(self.gate_up, self.down, strict=True)):
            h = gate_up(x)
            y = F.gelu(h) * self.up[number](x) if self.kind == "separate" else self.gated(h)
            x = x + down(y)
        return self.head(x)


class ConvGLU(nn.Module):
    """F.glu over the channels of an image, and a convolution that reads the result."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 14, 3, 1, 1)
        self.bn = nn.BatchNorm2d(14)
        self.conv2 = conv_bn(7, 9)
        self.head = Head(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv2(F.glu(self.bn(self.conv1(x)), 1)))


class MaxOut(nn.Module):
    """The larger of two halves goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(6, 18)
        self.fc2 = nn.Linear(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.fc1(x).chunk(2, -1)
        return self.fc2(torch.maximum(first, second))


class GroupNormNet(nn.Module):
    """Residual blocks under GroupNorm; the number of groups decides what may go together."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 12, 3, 1, 1)
        self.norm1 = nn.GroupNorm(groups, 12)
        self.conv2 = nn.Conv2d(12, 8, 3, 1, 1)
        self.norm2 = nn.GroupNorm(1, 8)
        self.conv3 = nn.Conv2d(8, 12, 3, 1, 1)
        self.norm3 = nn.GroupNorm(groups, 12)
        # Not pooled: what is normed over positions hardly differs in its mean.
        self.head = nn.Conv2d(12, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        y = self.conv3(F.relu(self.norm2(self.conv2(x))))
        return self.head(F.relu(self.norm3(x + y)))


class InstanceNormNet(nn.Module):
    """InstanceNorm with and without parameters, and with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 7, 3, 1, 1)
        self.norm1 = nn.InstanceNorm2d(7, affine=True)
        self.conv2 = nn.Conv2d(7, 9, 3, 1, 1)
        self.norm2 = nn.InstanceNorm2d(9)
        self.conv3 = nn.Conv2d(9, 6, 3, 1, 1)
        self.norm3 = nn.InstanceNorm2d(6, affine=True, track_running_stats=True)
        self.head = nn.Conv2d(6, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        return self.head(F.relu(self.norm3(self.conv3(x))))


class PlainBatchNorms(nn.Module):
    """BN without parameters, without statistics, over vectors and over sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(3, 7, 3, padding=1)
        self.bn1 = nn.BatchNorm1d(7, affine=False)
        self.conv2 = nn.Conv1d(7, 9, 3, padding=1)
        self.bn2 = nn.BatchNorm1d(9, track_running_stats=False)
        self.fc1 = nn.Linear(9, 8)
        self.bn3 = nn.BatchNorm1d(8)
        self.fc2 = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return self.fc2(F.relu(self.bn3(self.fc1(x.amax(-1)))))


class LayerNorm2d(nn.LayerNorm):
    """LayerNorm over the channels of an image, by a detour through channels-last."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtLike(nn.Module):
    """Depthwise convolution, norm, a channels-last MLP and a layer scale."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 10, 2, 2)
        self.norm0 = LayerNorm2d(10)
        self.depthwise = nn.Conv2d(10, 10, 5, padding=2, groups=10)
        self.norm = nn.LayerNorm(10, eps=1e-6)
        self.fc1 = nn.Linear(10, 23)
        self.fc2 = nn.Linear(23, 10)
        self.gamma = nn.Parameter(torch.full((10,), 1e-6))
        self.norm1 = LayerNorm2d(10)
        self.down = nn.Conv2d(10, 14, 2, 2)
        self.head = Head(14, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm0(self.stem(x))
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.gamma * self.fc2(F.gelu(self.fc1(y)))
        x = x + y.permute(0, 3, 1, 2)
        return self.head(F.gelu(self.down(self.norm1(x))))


class ChannelNormByHand(nn.Module):
    """Mean and variance over channels written out, channels first."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 1, 1)
        self.weight = nn.Parameter(torch.ones(8))
        self.bias = nn.Parameter(torch.zeros(8))
        self.conv2 = conv_bn(8, 7)
        self.head = Head(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + 1e-6)
        x = self.weight[:, None, None] * x + self.bias[:, None, None]
        return self.head(self.conv2(F.relu(x)))


class RMSNormByHand(nn.Module):
    """Root mean square over the last dimension, written out as language models do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class NormedMLP(nn.Module):
    """A residual MLP under a norm of the given kind, within the hidden layer too."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        norm = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "hand": RMSNormByHand}[kind]
        self.stem = nn.Linear(6, 11)
        self.norm1 = norm(11)
        self.up = nn.Linear(11, 17)
        self.inner = norm(17)
        self.down = nn.Linear(17, 11)
        self.norm2 = norm(11)
        self.head = nn.Linear(11, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.down(self.inner(F.gelu(self.up(self.norm1(x)))))
        return self.head(self.norm2(x))


class PReLUNet(nn.Module):
    """One slope per channel, and one for all."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 1, 1)
        self.act1 = nn.PReLU(8)
        self.conv2 = nn.Conv2d(8, 7, 3, 1, 1)
        self.act2 = nn.PReLU()
        self.head = Head(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act2(self.conv2(self.act1(self.conv1(x)))))


class BareScale(nn.Module):
    """Bare parameters scale, shift and gate channels; one number scales a whole branch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 8)
        self.gamma = nn.Parameter(torch.ones(1, 8, 1, 1))
        self.beta = nn.Parameter(torch.zeros(8, 1, 1))
        self.conv = conv_bn(8, 8)
        self.layer_scale = nn.Parameter(torch.full((8,), 1e-4))
        self.alpha = nn.Parameter(torch.zeros(()))
        self.head = Head(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x * self.gamma + self.beta
        x = x + self.layer_scale.view(1, -1, 1, 1) * self.conv(x)
        return self.head(x + self.alpha * x.sin())


class BareBuffers(nn.Module):
    """A frozen norm whose scale and shift are buffers, and constants that normalise the input."""

    mean: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1))
        self.conv1 = nn.Conv2d(3, 9, 3, 1, 1, bias=False)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 9))
        self.register_buffer("shift", torch.linspace(-0.4, 0.6, 9), persistent=False)
        self.conv2 = conv_bn(9, 7)
        self.head = Head(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x - self.mean)
        x = x * self.scale.reshape(1, -1, 1, 1) + self.shift.reshape(1, -1, 1, 1)
        return self.head(self.conv2(F.relu(x)))
