"""Data sets of any kind as tensors on disk: train.safetensors and test.safetensors."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from obc.data.images import Loaded, statistics
from obc.errors import ObcError


def tensors(folder: Path) -> tuple[Loaded, Loaded]:
    """Each file holds `images` and `labels`; a `mean` and `std` in the first are optional.

    Bytes are normalised by those, or by the training images' own; floating-point images are taken
    as they are unless both are given.
    """
    train, test = (_read(folder / f"{part}.safetensors") for part in ("train", "test"))
    images = train["images"]
    if images.ndim != 4:
        raise ObcError(f"images in {folder} must have 4 dimensions, not {images.ndim}")
    if "mean" in train and "std" in train:
        mean, std = train["mean"].tolist(), train["std"].tolist()
    elif images.dtype == torch.uint8:
        mean, std = statistics(images)
    else:
        mean, std = [0.0] * images.shape[1], [1.0] * images.shape[1]
    names = [str(i) for i in range(int(train["labels"].max()) + 1)]
    first, rest = (
        Loaded(part["images"], part["labels"].long(), names, mean, std) for part in (train, test)
    )
    return first, rest


def _read(file: Path) -> dict[str, Tensor]:
    try:
        tensors = load_file(file)
    except FileNotFoundError:
        raise ObcError(f"no {file}") from None
    except (OSError, SafetensorError) as error:
        raise ObcError(f"{file} is truncated or no safetensors file: {error}") from None
    for name in ("images", "labels"):
        if name not in tensors or not tensors[name].numel():
            raise ObcError(
                f"{file} holds no '{name}', only {', '.join(sorted(tensors)) or 'nothing'}"
            )
    return tensors
