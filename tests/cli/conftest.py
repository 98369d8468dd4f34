"""A small trained network for the commands to work on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import done

RECIPE = """
data = "digits"
lr = 0.05
epochs = {epochs}
batch_size = 64
schedule = "cosine"
{more}
"""
PRUNE = """
[prune]
target = "macs=2x"
rows = 2
batch_size = 64
step = 0.1
"""


@pytest.fixture(scope="session")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of recipes: `short` tunes, `whole` learns sparsely, prunes and tunes."""
    folder = tmp_path_factory.mktemp("recipes")
    sparse = "\n[sparse]\nepochs = 1\nlr = 0.01\nstrength = 0.0005\n"
    (folder / "short.toml").write_text(RECIPE.format(epochs=1, more=""))
    (folder / "long.toml").write_text(RECIPE.format(epochs=200, more=""))
    (folder / "whole.toml").write_text(RECIPE.format(epochs=1, more=PRUNE + sparse))
    return folder


@pytest.fixture(scope="session")
def dense(tmp_path_factory: pytest.TempPathFactory, recipes: Path) -> Path:
    """A ResNet-20 of four channels, trained for an epoch by `obc tune`."""
    folder = tmp_path_factory.mktemp("dense") / "model"
    done("tune", "resnet20,width=4", "--recipe", recipes / "short.toml", "--out", folder)
    return folder


@pytest.fixture(scope="session")
def half(tmp_path_factory: pytest.TempPathFactory, dense: Path) -> Path:
    """Half of it, its connections kept."""
    folder = tmp_path_factory.mktemp("half") / "model"
    quick = ["--rows", 2, "--step", 0.1, "--batch-size", 64]
    done(
        *("prune", dense, "--data", "digits", "--target", "macs=2x", "--equivalent"),
        *("--out", folder, *quick),
    )
    return folder
