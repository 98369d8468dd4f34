"""Names with options: read back by `obc.load`, and filled up from the data."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import obc
from obc.models import fitted, resolve
from obc.models.resolver import options_of


def test_a_saved_model_is_built_again_from_its_name(tmp_path: Path) -> None:
    name = fitted("resnet20,width=4", (1, 8, 8), 7)
    model = resolve(name).eval()
    obc.save(model, tmp_path / "model", reference=name)
    again = obc.load(name, tmp_path / "model").eval()
    x = torch.randn(2, 1, 8, 8)
    assert again(x).shape == (2, 7) and torch.equal(again(x), model(x))


@pytest.mark.parametrize(
    ("name", "plain", "options"),
    [
        ("resnet20", "resnet20", {}),
        ("a,b/net.py:build", "a,b/net.py:build", {}),
        ("a,b/net.py:build,deep=true", "a,b/net.py:build", {"deep": True}),
        ("x,lr=1e-3,n=5,kind=wide", "x", {"lr": 1e-3, "n": 5, "kind": "wide"}),
    ],
)
def test_options_are_what_stands_at_the_end(
    name: str, plain: str, options: dict[str, object]
) -> None:
    assert options_of(name) == (plain, options)


def test_vit_takes_the_size_of_the_images() -> None:
    model = resolve(fitted("vit_small,patch=2", (1, 8, 8), 10))
    assert model(torch.randn(1, 1, 8, 8)).shape == (1, 10)


def test_what_the_name_says_wins() -> None:
    assert fitted("resnet20,num_classes=3", (1, 8, 8), 10) == (
        "resnet20,num_classes=3,in_channels=1"
    )


def test_an_option_nobody_knows_is_told() -> None:
    with pytest.raises(obc.ObcError, match="cannot be built"):
        resolve("resnet20,depth=5")
