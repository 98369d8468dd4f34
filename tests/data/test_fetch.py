"""Data sets by name: Hugging Face's from a folder, torchvision's by its own classes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import obc
from obc.data import fetch as module
from obc.data import load
from tests.cli.running import done


def picture(number: int, side: int = 6) -> Image.Image:
    return Image.fromarray(np.full((side, side, 3), number, dtype=np.uint8))


def test_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    kinds = datasets.Features(
        {"img": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
    )
    for part, count in (("train", 5), ("test", 3)):
        rows = {"img": [picture(n) for n in range(count)], "label": [n % 2 for n in range(count)]}
        made = datasets.Dataset.from_dict(rows, features=kinds)
        made.to_parquet(str(tmp_path / "source" / f"{part}.parquet"))
    told = done("data", f"hf:{tmp_path / 'source'}", tmp_path / "data")
    assert (told["train"], told["test"], told["shape"]) == (5, 3, [3, 6, 6])
    data = load("tensors", tmp_path / "data")
    assert torch.equal(data.train.fetch(torch.arange(5), None)[:, 0, 0, 0], torch.arange(5))
    assert data.train.labels.tolist() == [0, 1, 0, 1, 0]


def test_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def numbers(root: str, train: bool, download: bool) -> list[tuple[Image.Image, int]]:
        assert download and Path(root).parent == tmp_path
        sides = (6, 8) if train else (6, 6)
        return [(picture(n, side), n) for n, side in enumerate(sides)]

    fake: Any = SimpleNamespace(Numbers=numbers)
    monkeypatch.setattr(module, "_library", lambda name, extra: fake)
    with pytest.raises(obc.ObcError, match="several sizes or colours"):
        module.fetch("torchvision:Numbers", tmp_path)
    module.fetch("torchvision:Numbers", tmp_path, size=4)
    assert load("tensors", tmp_path).shape == (3, 4, 4)
    with pytest.raises(obc.ObcError, match=r"torchvision\.datasets has no Digits"):
        module.fetch("torchvision:Digits", tmp_path)


def test_a_name_of_no_source(tmp_path: Path) -> None:
    with pytest.raises(obc.ObcError, match="there are hf:NAME and torchvision:NAME"):
        module.fetch("cifar10", tmp_path)
