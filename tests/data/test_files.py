"""Data sets on disk: read as their layouts say; missing, damaged and pickled files are refused."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import obc
from obc.data import NAMES, load


def write_cifar10(folder: Path, per_file: int = 4) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 256, (per_file, 3073), dtype=np.uint8) for _ in range(6)]
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    for name, row in zip(names, rows, strict=True):
        row[:, 0] %= 10
        (folder / name).write_bytes(row.tobytes())
    return rows


def write_idx(file: Path, data: np.ndarray, packed: bool = True) -> None:
    head = bytes([0, 0, 8, data.ndim]) + struct.pack(f">{data.ndim}I", *data.shape)
    if packed:
        file.with_name(file.name + ".gz").write_bytes(gzip.compress(head + data.tobytes()))
    else:
        file.write_bytes(head + data.tobytes())


def write_fashion(folder: Path, packed: bool = True) -> np.ndarray:
    images = np.random.default_rng(0).integers(0, 256, (6, 28, 28), dtype=np.uint8)
    for split in ("train", "t10k"):
        write_idx(folder / f"{split}-images-idx3-ubyte", images, packed)
        write_idx(folder / f"{split}-labels-idx1-ubyte", np.arange(6, dtype=np.uint8), packed)
    return images


def test_cifar10_planes_and_labels(tmp_path: Path) -> None:
    rows = write_cifar10(tmp_path)
    data = load("cifar10", tmp_path)
    assert (len(data.train), len(data.test), data.shape) == (20, 4, (3, 32, 32))
    # Row 5 is the second of the second file; pixel (channel 1, y 2, x 3) of a plane-wise layout.
    assert data.train.labels[5] == rows[1][1, 0]
    found = data.train.fetch(torch.tensor([5]), None)
    assert int(found[0, 1, 2, 3]) == rows[1][1, 1 + 1024 + 2 * 32 + 3]
    (batch,) = data.test.test(4)
    wanted = (found.new_tensor(int(rows[5][0, 1])).float() / 255 - 0.4914) / 0.2470
    torch.testing.assert_close(batch.images[0, 0, 0, 0], wanted)


def test_cifar_in_the_folder_of_the_usual_name(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-bin").mkdir()
    write_cifar10(tmp_path / "cifar-10-batches-bin")
    assert len(load("cifar10", tmp_path).train) == 20


def test_cifar100_takes_the_fine_label(tmp_path: Path) -> None:
    row = np.zeros((2, 3074), dtype=np.uint8)
    row[:, 0], row[:, 1], row[:, 2] = 7, 93, 255
    for name in ("train.bin", "test.bin"):
        (tmp_path / name).write_bytes(row.tobytes())
    data = load("cifar100", tmp_path)
    assert data.train.labels.tolist() == [93, 93]
    assert len(data.classes) == 100
    assert int(data.train.fetch(torch.tensor([0]), None)[0, 0, 0, 0]) == 255


@pytest.mark.parametrize("packed", [True, False])
def test_fashion_mnist(tmp_path: Path, packed: bool) -> None:
    images = write_fashion(tmp_path, packed)
    data = load("fashion-mnist", tmp_path)
    assert np.array_equal(data.train.fetch(torch.arange(6), None)[:, 0].numpy(), images)
    assert data.test.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert data.shape == (1, 28, 28)


def test_tensors_on_disk(tmp_path: Path) -> None:
    images = torch.randint(0, 256, (8, 3, 5, 7), dtype=torch.uint8)
    labels = torch.arange(8) % 3
    for part in ("train", "test"):
        save_file({"images": images, "labels": labels}, tmp_path / f"{part}.safetensors")
    data = load("tensors", tmp_path)
    assert data.shape == (3, 5, 7) and len(data.classes) == 3
    (batch,) = data.train.test(8)
    assert abs(float(batch.images.mean())) < 1e-3, "normalised by the images' own mean"
    floats = {"images": images.float() * 7, "labels": labels}
    save_file(floats, tmp_path / "train.safetensors")
    (batch,) = load("tensors", tmp_path).train.test(8)
    assert torch.equal(batch.images, floats["images"]), "floating point is taken as it is"


def write_folders(root: Path) -> None:
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for name, value in (("dark", 40), ("light", 200)):
            (root / split / name).mkdir(parents=True)
            for i in range(3):
                noise = rng.integers(-20, 20, (20 + i, 30, 3))
                pixels = (value + noise).astype(np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{i}.png")


def test_image_folders(tmp_path: Path) -> None:
    write_folders(tmp_path)
    data = load("folder", tmp_path, size=16)
    assert data.classes == ("dark", "light") and data.shape == (3, 16, 16)
    (first,), (again,) = (data.train.train(6, seed=1, epoch=2) for _ in range(2))
    assert torch.equal(first.images, again.images), "random crops follow from the seed"
    (other,) = data.train.train(6, seed=1, epoch=3)
    assert not torch.equal(first.images, other.images)
    means = first.images.mean((1, 2, 3))
    assert torch.equal(means > 0, first.labels == 1), "labels stay with their images"
    (test,) = data.test.test(6)
    assert test.labels.tolist() == [0, 0, 0, 1, 1, 1]


def cut(file: Path, by: int = 100) -> None:
    file.write_bytes(file.read_bytes()[:-by])


def test_missing_and_truncated_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(obc.ObcError, match="no folder"):
        load("cifar10", tmp_path / "nowhere")
    with pytest.raises(obc.ObcError, match=r"no .*data_batch_1.bin"):
        load("cifar10", tmp_path)
    write_cifar10(tmp_path)
    cut(tmp_path / "data_batch_3.bin")
    with pytest.raises(obc.ObcError, match=r"data_batch_3.bin is truncated"):
        load("cifar10", tmp_path)
    with pytest.raises(obc.ObcError, match="idx3-ubyte"):
        load("fashion-mnist", tmp_path)
    for packed in (False, True):
        write_fashion(tmp_path, packed)
        ending = ".gz" if packed else ""
        cut(tmp_path / f"t10k-images-idx3-ubyte{ending}")
        with pytest.raises(obc.ObcError, match=r"t10k-images-idx3-ubyte.* truncated"):
            load("fashion-mnist", tmp_path)
        (tmp_path / "t10k-images-idx3-ubyte").unlink(missing_ok=True)
    with pytest.raises(obc.ObcError, match=r"no .*train.safetensors"):
        load("tensors", tmp_path)
    save_file({"pictures": torch.zeros(2)}, tmp_path / "train.safetensors")
    with pytest.raises(obc.ObcError, match="no 'images', only pictures"):
        load("tensors", tmp_path)
    cut(tmp_path / "train.safetensors", 3)
    with pytest.raises(obc.ObcError, match="truncated"):
        load("tensors", tmp_path)


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    write_folders(tmp_path)
    cut(tmp_path / "val" / "light" / "1.png", 400)
    data = load("folder", tmp_path, size=16)
    with pytest.raises(obc.ObcError, match=r"light/1.png is truncated"):
        list(data.test.test(6))
    (tmp_path / "val" / "dark").rename(tmp_path / "val" / "black")
    with pytest.raises(obc.ObcError, match="'black' is only in one of"):
        load("folder", tmp_path)


def test_pickled_cifar_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1").write_bytes(b"\x80\x04.")
    with pytest.raises(obc.ObcError, match="pickled Python version"):
        load("cifar10", tmp_path)


def test_a_label_that_no_class_has_is_refused(tmp_path: Path) -> None:
    rows = write_cifar10(tmp_path)
    rows[0][0, 0] = 11
    (tmp_path / "data_batch_1.bin").write_bytes(rows[0].tobytes())
    with pytest.raises(obc.ObcError, match="label is 11, but there are 10 classes"):
        load("cifar10", tmp_path)


def test_unknown_names_and_missing_folders() -> None:
    with pytest.raises(obc.ObcError, match="did you mean 'cifar10'"):
        load("cifar-10")
    for name in NAMES[1:]:
        with pytest.raises(obc.ObcError, match="read from a folder"):
            load(name)
