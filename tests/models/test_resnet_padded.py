"""Padded ResNets: their shortcut against F.pad, their names, and how narrow they can be made."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

import obc
from obc.models import resnet20_padded, resolve
from obc.models.resnet_padded import Padding

WEIGHTS = Path(__file__).parents[3] / "shared" / "weights"


def test_the_shortcut_is_option_a() -> None:
    x = torch.randn(2, 6, 8, 8)
    padded = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 3, 3))
    assert torch.equal(Padding(6, 12, 2)(x), padded)
    assert not torch.equal(Padding(6, 12, 2)(x), padded.flip(1))


def test_names_and_shapes_are_those_of_the_public_weights() -> None:
    state = resnet20_padded().state_dict()
    blocks = {f"layer{i}.{j}" for i in (1, 2, 3) for j in (0, 1, 2)}
    norms = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    expected = {"conv1.weight", "linear.weight", "linear.bias"} | {f"bn1.{n}" for n in norms}
    for block in blocks:
        expected |= {f"{block}.conv{i}.weight" for i in (1, 2)}
        expected |= {f"{block}.bn{i}.{n}" for i in (1, 2) for n in norms}
    assert state.keys() == expected


def test_each_channel_of_each_stage_can_go() -> None:
    model = resnet20_padded(width=4).eval()
    example = torch.randn(2, 3, 16, 16)
    sites = obc.trace(model, example)
    assert [frozen.layer for frozen in sites.frozen] == ["linear"]
    kept = {site.name: torch.arange(site.size // 2) for site in sites}
    pruned = obc.apply(copy.deepcopy(model), obc.Plan.from_kept(sites, kept))
    assert pruned.linear.in_features == 8
    assert pruned.layer3[0].downsample.before.shape[1] == 2


@pytest.mark.slow
@pytest.mark.skipif(not WEIGHTS.is_dir(), reason="no weights beside the checkout")
@pytest.mark.parametrize("name", ["resnet20", "resnet56"])
def test_public_weights_load(name: str) -> None:
    model = resolve(f"{name}_padded")
    model.load_state_dict(load_file(WEIGHTS / f"{name}_cifar10_padded.safetensors"))
