"""`fetch`: a data set of Hugging Face or torchvision by name, kept as tensors in a folder."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from obc.disk.writing import write
from obc.errors import ObcError

SOURCES = ("hf:NAME", "torchvision:NAME")
_TESTS = ("test", "validation", "valid", "val")


def fetch(name: str, folder: str | Path, *, size: int | None = None) -> Path:
    """Write train.safetensors and test.safetensors, as `--data tensors:FOLDER` reads them.

    `name` is "hf:uoft-cs/cifar10" (anything that `datasets.load_dataset` takes and that has images
    and labels) or "torchvision:CIFAR10". Images of several sizes are scaled to `size` pixels.
    """
    kind, colon, rest = name.partition(":")
    sources = {"hf": _hugging_face, "torchvision": _torchvision}
    if not colon or kind not in sources or not rest:
        raise ObcError(f"'{name}' names no source of data; there are {' and '.join(SOURCES)}")
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    for part, samples in zip(("train", "test"), sources[kind](rest, root), strict=True):
        images, labels = _tensors(samples, size)
        tensors = {"images": images, "labels": labels}
        write(root / f"{part}.safetensors", lambda aside, t=tensors: save_file(t, aside))  # type: ignore[misc]
    return root


def _hugging_face(name: str, root: Path) -> list[Iterable[tuple[Any, int]]]:
    splits = _library("datasets", "hf").load_dataset(name)
    test = next((s for s in _TESTS if s in splits), None)
    if "train" not in splits or test is None:
        raise ObcError(f"{name} has the splits {', '.join(splits)}; train and test are needed")
    features = splits["train"].features
    image = next((n for n, f in features.items() if type(f).__name__ == "Image"), None)
    label = next((n for n, f in features.items() if type(f).__name__ == "ClassLabel"), None)
    label = label or next((n for n in ("label", "labels") if n in features), None)
    if image is None or label is None:
        raise ObcError(f"{name} has no images with labels, but {', '.join(features)}")
    return [((row[image], row[label]) for row in splits[part]) for part in ("train", test)]


def _torchvision(name: str, root: Path) -> list[Iterable[tuple[Any, int]]]:
    kinds = _library("torchvision.datasets", "vision")
    kind = getattr(kinds, name, None)
    if kind is None:
        raise ObcError(f"torchvision.datasets has no {name}")
    try:
        return [kind(str(root / "download"), train=train, download=True) for train in (True, False)]
    except TypeError as error:
        raise ObcError(f"torchvision.datasets.{name} is not fetched this way: {error}") from None


def _tensors(samples: Iterable[tuple[Any, int]], size: int | None) -> tuple[Tensor, Tensor]:
    images, labels = [], []
    for image, label in samples:
        colours = image if image.mode in ("L", "RGB") else image.convert("RGB")
        scaled = colours if size is None else colours.resize((size, size))
        pixels = torch.from_numpy(np.array(scaled))
        images.append(pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1))
        labels.append(int(label))
    if not images:
        raise ObcError("there are no images")
    if len({i.shape for i in images}) > 1:
        raise ObcError("the images have several sizes or colours: scale them with --size")
    return torch.stack(images).contiguous(), torch.tensor(labels)


def _library(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:
        raise ObcError(
            f"{name} does not import ({error}): pip install 'obc[{extra}]'",
            section="what-is-not-installed",
        ) from None
