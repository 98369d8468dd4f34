"""Fashion-MNIST (and MNIST) in the idx layout, gzipped or not."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from obc.data.images import Loaded
from obc.errors import ObcError

CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
MEAN, STD = (0.2860,), (0.3530,)
SPLITS = ("train", "t10k")
LIMIT = 2**30  # bytes that a file may unpack to; the largest has 47 million


def fashion_mnist(folder: Path) -> tuple[Loaded, Loaded]:
    """From train-images-idx3-ubyte and its three siblings, each with or without .gz."""
    first, rest = (
        Loaded(
            read_idx(folder / f"{split}-images-idx3-ubyte", 3)[:, None],
            read_idx(folder / f"{split}-labels-idx1-ubyte", 1).long(),
            CLASSES,
            MEAN,
            STD,
        )
        for split in SPLITS
    )
    return first, rest


def read_idx(file: Path, dims: int) -> Tensor:
    """A file of bytes with so many dimensions."""
    data = _bytes(file)
    head = 4 + 4 * dims
    if len(data) < head or data[:4] != bytes([0, 0, 8, dims]):
        raise ObcError(f"{file} is no idx file of bytes with {dims} dimensions")
    shape = np.frombuffer(data, dtype=">u4", count=dims, offset=4).astype(int).tolist()
    if len(data) - head != math.prod(shape):
        raise ObcError(
            f"{file} is truncated: {len(data) - head} bytes instead of {math.prod(shape)}"
        )
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8, offset=head).copy()).view(shape)


def _bytes(file: Path) -> bytes:
    packed = file.with_name(file.name + ".gz")
    try:
        if file.is_file():
            return file.read_bytes()
        with gzip.open(packed) as source:
            data = source.read(LIMIT + 1)
    except FileNotFoundError:
        raise ObcError(
            f"no {file} or {packed.name}; 'obc data torchvision:FashionMNIST FOLDER' gets the "
            "images for --data tensors:FOLDER"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise ObcError(f"{packed} is truncated or damaged: {error}") from None
    if len(data) > LIMIT:
        raise ObcError(f"{packed} unpacks to more than {LIMIT} bytes")
    return data
