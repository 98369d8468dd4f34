"""Images per second from JPEGs: our folder's threads beside torch's DataLoader with workers."""

from __future__ import annotations

import argparse
import itertools
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
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


def rate(batches: Iterable[Any]) -> float:
    """Images per second of wall time, the start of workers left out."""
    drawn = iter(batches)
    next(drawn)
    start, images = time.perf_counter(), 0
    for batch in drawn:
        images += len(batch[1])
    return images / (time.perf_counter() - start)


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
        rows: dict[str, float] = {}
        for _ in range(options.rounds):  # in turns, so that all see the same machine
            rounds = {"obc.data.folder, threads": folder.train(64)}
            for workers in (1, 2):
                rounds[f"DataLoader, {workers} workers"] = DataLoader(
                    Crops(folder), batch_size=64, shuffle=True, num_workers=workers
                )
            for name, batches in rounds.items():
                rows[name] = max(rows.get(name, 0.0), rate(batches))
    lines = [(name, f"{images:.0f}") for name, images in rows.items()]
    _harness.show("JPEGs to crops, both cores", ("loader", "images per second"), lines)
    _harness.save("loading", {"images per second": rows, "images": options.images})


if __name__ == "__main__":
    main()
