"""The networks that recalibration is judged on, each with images to calibrate and to judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import _curves
from benchmarks._curves import Batch, Data
from obc.data.cifar import MEAN_10, STD_10
from obc.models import (
    mobilenet_v2,
    resnet20_padded,
    resnet56,
    resnet56_padded,
    vgg16,
    vit_small,
)

IMAGES = 2048  # of CIFAR-10, to calibrate with
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's


@dataclass(frozen=True)
class Folders:
    """Where the data and the weights are, that are not part of the project."""

    cifar: Path | None
    fashion: Path | None
    imagenet: Path | None
    weights: Path | None
    mobilenet: Path | None


class MixerBlock(nn.Module):
    """Tokens are mixed, then channels."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens1, self.tokens2 = nn.Linear(tokens, 2 * tokens), nn.Linear(2 * tokens, tokens)
        self.channels1, self.channels2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x).transpose(1, 2)
        x = x + self.tokens2(functional.gelu(self.tokens1(y))).transpose(1, 2)
        y = self.channels2(functional.gelu(self.channels1(self.norm2(x))))
        return x + y


class Mixer(nn.Module):
    """An MLP-Mixer for 8 x 8 images in patches of 2 x 2."""

    def __init__(self, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, 2)
        self.blocks = nn.Sequential(*(MixerBlock(16, width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.patches(x).flatten(2).transpose(1, 2))
        logits: Tensor = self.head(self.norm(x).mean(1))
        return logits


def transformer(data: Data, seed: int, build: Callable[[], nn.Module], epochs: int) -> nn.Module:
    """A network with attention or mixing, trained by AdamW."""
    torch.manual_seed(seed)
    model = build()
    batches = data.batches(64)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.05)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, epochs * len(batches))
    for _ in range(epochs):
        for i in torch.randperm(len(batches)).tolist():
            optimizer.zero_grad()
            _curves.loss(model, batches[i]).backward()
            optimizer.step()
            rates.step()
    return model.eval()


def small_vit() -> nn.Module:
    return vit_small(image=8, patch=2, in_channels=1, dim=32, depth=3)


def imagenet(folder: Path, seed: int) -> Data:
    """500 labelled images: half of them, drawn by the seed, to calibrate, the others to judge."""
    images, labels = [], []
    for path in sorted(folder.glob("*.jpg")):
        picture = np.asarray(Image.open(path).convert("RGB"), dtype=np.float32) / 255
        top, left = ((size - 224) // 2 for size in picture.shape[:2])
        images.append(torch.from_numpy(picture[top : top + 224, left : left + 224].copy()))
        labels.append(int(path.name.split("_")[0]))
    x = (torch.stack(images) - torch.tensor(MEAN)) / torch.tensor(STD)
    x, y = x.permute(0, 3, 1, 2).contiguous(), torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    first, rest = order[: len(x) // 2], order[len(x) // 2 :]
    return Data((x[first], y[first]), (x[rest], y[rest]))


def renormalised(part: Batch) -> Batch:
    """From the mean and deviation of CIFAR-10 to those of ImageNet."""
    a, b, c, d = (torch.tensor(v).view(1, 3, 1, 1) for v in (STD_10, MEAN_10, MEAN, STD))
    return (part[0] * a + b - c) / d, part[1]


# Networks for CIFAR-10, and the files of their weights.
CIFAR: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "resnet56": (resnet56, "resnet56_cifar10"),
    "resnet56_padded": (resnet56_padded, "resnet56_cifar10_padded"),
    "resnet20_padded": (resnet20_padded, "resnet20_cifar10_padded"),
    "vgg16_quarter": (lambda: vgg16(10, width=16), "vgg16_quarter_cifar10"),
    "vit_cifar": (vit_small, "vit_cifar10"),
}


def network(
    name: str, seed: int, folders: Folders, images: int = IMAGES, test: int = 2000
) -> tuple[nn.Module, Data]:
    """A trained network and its data, drawn by the seed; of CIFAR-10 so many images."""
    if name in CIFAR:
        assert folders.cifar is not None and folders.weights is not None
        build, file = CIFAR[name]
        model, data = build(), _curves.cifar(seed, folders.cifar, images, test)
        model.load_state_dict(load_file(folders.weights / f"{file}.safetensors"))
        if name.endswith("_padded"):
            data = Data(renormalised(data.train), renormalised(data.test))
        return model.eval(), data
    if name == "mobilenet":
        assert folders.imagenet is not None and folders.mobilenet is not None
        model = mobilenet_v2()
        model.load_state_dict(torch.load(folders.mobilenet, weights_only=True))
        return model.eval(), imagenet(folders.imagenet, seed)
    if name == "fashion":
        assert folders.fashion is not None
        data = _curves.fashion(seed, folders.fashion)
        return _curves.trained(data, seed, 8), data
    data = _curves.digits(seed)
    if name == "digits":
        return _curves.trained(data, seed, 8), data
    build = {"vit": small_vit, "mixer": Mixer}[name]
    return transformer(data, seed, build, 25), data
