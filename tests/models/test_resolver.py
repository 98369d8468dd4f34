"""One name for every model; what cannot be had is told with what would help."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import obc
from obc.models import fitted, resolve
from obc.models.resolver import OWN
from tests.vision import import_torchvision, installed

FILE = """
import torch
def net(num_classes=3, width=4):
    return torch.nn.Linear(width, num_classes)
def number():
    return 7
def failing():
    raise RuntimeError("no such width")
"""


@pytest.mark.parametrize("name", [name for name in OWN if "yolo" not in name])
def test_our_own(name: str) -> None:
    model = resolve(fitted(name, (3, 32, 32), 7))
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


@pytest.mark.torchvision
@pytest.mark.skipif(not installed("torchvision"), reason="no torchvision")
def test_torchvision() -> None:
    import_torchvision()
    model = resolve("torchvision:resnet18", num_classes=5)
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 5)
    with pytest.raises(obc.ObcError, match="did you mean 'resnet18'"):
        resolve("torchvision:resnet_18")


@pytest.mark.torchvision
@pytest.mark.skipif(not installed("timm"), reason="no timm")
def test_timm() -> None:
    import_torchvision()
    model = resolve("timm:resnet10t", num_classes=5)
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 5)
    with pytest.raises(obc.ObcError, match="timm has no model 'resnet10x'; did you mean"):
        resolve("timm:resnet10x")


@pytest.mark.skipif(not installed("transformers"), reason="no transformers")
def test_hugging_face_from_a_folder(tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=8,
        patch_size=4,
        num_labels=3,
    )
    saved = ViTForImageClassification(config)
    saved.save_pretrained(tmp_path)
    model = resolve(f"hf:{tmp_path}", pretrained=True)
    assert torch.equal(model.classifier.weight, saved.classifier.weight)
    fresh = resolve(f"hf:{tmp_path}", num_classes=4)
    assert fresh.classifier.weight.shape == (4, 16)
    with pytest.raises(obc.ObcError, match="cannot be built"):
        resolve(f"hf:{tmp_path / 'nowhere'}")


def test_a_file_of_the_users(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE)
    model = resolve(f"{file}:net", num_classes=5, width=9)
    assert model.weight.shape == (5, 9)
    for name, words in (
        (f"{file}:nett", "has no function 'nett'; did you mean 'net'"),
        (f"{file}:number", "gives a int, not a torch.nn.Module"),
        (f"{file}:failing", "RuntimeError: no such width"),
        (f"{tmp_path}/other.py:net", "no file"),
    ):
        with pytest.raises(obc.ObcError, match=words):
            resolve(name)
    file.write_text("import no_such_module")
    with pytest.raises(obc.ObcError, match="cannot be imported: ModuleNotFoundError"):
        resolve(f"{file}:net")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("resnet51", "no model named 'resnet51'; did you mean"),
        ("keras:resnet", "names no model"),
        ("timm:", "names no model"),
    ],
)
def test_unknown_names(name: str, words: str) -> None:
    with pytest.raises(obc.ObcError, match=words):
        resolve(name)


def test_our_own_have_no_weights() -> None:
    with pytest.raises(obc.ObcError, match="no weights of its own"):
        resolve("resnet20", pretrained=True)


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("torchvision:resnet18", "torchvision", "vision"),
        ("timm:resnet18", "timm", "vision"),
        ("hf:some/model", "transformers", "hf"),
    ],
)
def test_a_missing_library_names_its_extra(
    name: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(obc.ObcError, match=rf"obc\[{extra}\]"):
        resolve(name)
