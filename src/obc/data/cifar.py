"""CIFAR-10 and CIFAR-100 in their *binary* layout: the other one is pickled, so it is not read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from obc.data.images import Loaded
from obc.errors import ObcError

PIXELS = 3 * 32 * 32
TRAIN_10 = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
CLASSES_10 = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
MEAN_10, STD_10 = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
MEAN_100, STD_100 = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)


def cifar10(folder: Path) -> tuple[Loaded, Loaded]:
    """From data_batch_1.bin to data_batch_5.bin and test_batch.bin: label, then pixels."""
    folder = _inside(folder, "cifar-10-batches-bin")
    first, rest = (
        _read(folder, files, 1, CLASSES_10, MEAN_10, STD_10)
        for files in (TRAIN_10, ("test_batch.bin",))
    )
    return first, rest


def cifar100(folder: Path) -> tuple[Loaded, Loaded]:
    """From train.bin and test.bin: coarse label, fine label, then pixels; fine ones are used."""
    folder = _inside(folder, "cifar-100-binary")
    names = folder / "fine_label_names.txt"
    classes = names.read_text().split() if names.is_file() else [str(i) for i in range(100)]
    if len(classes) != 100:
        raise ObcError(f"{names} has {len(classes)} names instead of 100")
    first, rest = (
        _read(folder, (file,), 2, classes, MEAN_100, STD_100) for file in ("train.bin", "test.bin")
    )
    return first, rest


def _inside(folder: Path, usual: str) -> Path:
    """The folder itself, or the one of the usual name in it."""
    return folder / usual if (folder / usual).is_dir() else folder


def _read(
    folder: Path,
    files: Sequence[str],
    labels: int,
    classes: Sequence[str],
    mean: Sequence[float],
    std: Sequence[float],
) -> Loaded:
    rows = np.concatenate([_rows(folder / file, labels + PIXELS) for file in files])
    numbers = torch.from_numpy(rows)
    images = numbers[:, labels:].reshape(-1, 3, 32, 32).contiguous()
    return Loaded(images, numbers[:, labels - 1].long(), classes, mean, std)


def _rows(file: Path, width: int) -> np.ndarray:
    try:
        content = np.fromfile(file, dtype=np.uint8)
    except FileNotFoundError:
        raise ObcError(_missing(file)) from None
    except OSError as error:
        raise ObcError(f"{file} cannot be read: {error}") from None
    if not content.size or content.size % width:
        raise ObcError(f"{file} is truncated: {content.size} bytes are no multiple of {width}")
    return content.reshape(-1, width)


def _missing(file: Path) -> str:
    pickled = (file.parent / file.stem).exists() or (file.parent / "cifar-10-batches-py").exists()
    if pickled:
        return (
            f"no {file}: this folder has the pickled Python version, which can run any code; "
            "get the binary version"
        )
    return (
        f"no {file}: the binary version of the data set is wanted; "
        "'obc data torchvision:CIFAR10 FOLDER' gets the images for --data tensors:FOLDER"
    )
