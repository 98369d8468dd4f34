"""CPU time of an image from JPEG to crop: our folder's threads beside DataLoader's workers."""

from __future__ import annotations

import argparse
import itertools
import math
import resource
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from benchmarks import _harness
from obc.data.folder import Folder, crop


class Crops(Dataset[tuple[torch.Tensor, int]]):
    """The same crops, one sample at a time, for a loader's workers."""

    def __init__(self, folder: Folder) -> None:
        self.files, self.labels, self.size = folder.files, folder.labels.tolist(), folder.shape[1]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        draw = torch.rand(4).tolist()
        return crop(self.files[number], draw, size=self.size), self.labels[number]


def classes(source: Path, count: int, into: Path) -> Path:
    """A folder of classes with so many JPEGs, copied from a flat one as often as it takes."""
    files = sorted(source.glob("*.jpg"))
    for number, file in zip(range(count), itertools.cycle(files), strict=False):
        place = into / "train" / f"class{number % 10}"
        place.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place / f"{number}.jpg")
    return into / "train"


class Transformed(Crops):
    """The same files, cropped by torchvision."""

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder)
        from torchvision import transforms

        self.change = transforms.Compose(
            [transforms.RandomResizedCrop(self.size), transforms.PILToTensor()]
        )

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.files[number]) as image:
            return self.change(image.convert("RGB")), self.labels[number]


def cpu_seconds() -> float:
    """Of this process, and of those it has started and that have ended."""
    used = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def normalised(folder: Folder, loader: Iterable[Any]) -> Iterator[Any]:
    """What the folder does with its crops, done with a loader's."""
    for pixels, labels in loader:
        yield folder.normalised(folder.unit(pixels)), labels


def per_image(batches: Iterable[Any]) -> tuple[float, float]:
    """CPU and wall seconds for one image of an epoch; workers are started and ended within."""
    cpu, wall, images = cpu_seconds(), time.perf_counter(), 0
    for batch in batches:
        images += len(batch[1])
    return (cpu_seconds() - cpu) / images, (time.perf_counter() - wall) / images


def main() -> None:
    """Measure, print a table, write it down."""
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path, help="a flat folder of JPEGs")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        folder = Folder(classes(options.source, options.images, Path(place)), options.size)
        rows: dict[str, tuple[float, float]] = {}
        for _ in range(options.rounds):  # in turns, so that all see the same machine
            rounds: dict[str, Iterable[Any]] = {"obc.data.folder, threads": folder.train(64)}
            for name, samples in (("the same crops", Crops), ("torchvision", Transformed)):
                for workers in (1, 2):
                    loader = DataLoader(
                        samples(folder), batch_size=64, shuffle=True, num_workers=workers
                    )
                    rounds[f"DataLoader, {workers} workers, {name}"] = normalised(folder, loader)
            for name, batches in rounds.items():
                rows[name] = min(rows.get(name, (math.inf, math.inf)), per_image(batches))
    lines = [
        (name, f"{1000 * cpu:.2f}", f"{1 / cpu:.0f}", f"{1 / wall:.0f}")
        for name, (cpu, wall) in rows.items()
    ]
    heads = ("loader", "CPU ms per image", "images per second of a core", "images per second here")
    _harness.show(f"{options.images} JPEGs to crops of {options.size}", heads, lines)
    cells = {name: {"CPU seconds": cpu, "seconds": wall} for name, (cpu, wall) in rows.items()}
    _harness.save("loading", {"per image": cells, "images": options.images, "size": options.size})


if __name__ == "__main__":
    main()
