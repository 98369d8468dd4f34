"""YOLOv7: published sizes, fusion, decoding by hand, names of published weights, and pruning."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import obc
from obc.models.yolov7 import YOLOv7, yolov7, yolov7_tiny
from obc.models.yolov7_layers import Implicit, RepConv
from obc.models.yolov7_weights import load_published, published_names, read_published
from tests.sensitive import sensitive

BUILD = [yolov7, yolov7_tiny]
Build = Callable[..., YOLOv7]


def small(build: Build, seed: int = 0) -> YOLOv7:
    model = sensitive(build(3, width=0.125), seed, (torch.rand(2, 3, 64, 64).double(),))
    assert isinstance(model, YOLOv7)
    return model


@pytest.mark.parametrize(
    ("build", "millions", "gigaflops"), [(yolov7, 36.9, 104.7), (yolov7_tiny, 6.2, 13.8)]
)
def test_published_sizes_once_fused(build: Build, millions: float, gigaflops: float) -> None:
    with torch.device("meta"):
        model = build().eval().fuse()
    cost = obc.cost(model, torch.zeros(1, 3, 640, 640, device="meta"))
    assert round(cost.params / 1e6, 1) == millions
    assert 2 * cost.macs / 1e9 == pytest.approx(gigaflops, rel=0.01)


@pytest.mark.parametrize("build", BUILD)
def test_fusing_keeps_the_outputs(build: Build) -> None:
    model, x = small(build), torch.rand(2, 3, 64, 64).double()
    with torch.no_grad():
        outputs = model(x)
        fused = copy.deepcopy(model).fuse()
        for a, b in zip(fused(x), outputs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    kinds = (nn.BatchNorm2d, Implicit)
    assert any(isinstance(m, kinds) for m in model.modules())
    assert not any(isinstance(m, kinds) for m in fused.modules())


def test_a_repconv_without_its_1x1_branch_differs() -> None:
    layer = sensitive(RepConv(4, 8, nn.SiLU), 0)
    x = torch.randn(1, 4, 5, 5).double()
    whole = layer(x)
    layer.rbr_1x1 = None
    assert not torch.allclose(layer(x), whole, rtol=1e-2)


def test_a_network_in_training_mode_is_not_fused() -> None:
    with pytest.raises(obc.ObcError, match="eval"):
        yolov7_tiny(width=0.125).train().fuse()


def test_decoding_by_hand() -> None:
    model = small(yolov7_tiny)
    maps = model(torch.rand(1, 3, 64, 96).double())
    decoded = model.decoded(maps)
    assert decoded.shape == (1, 3 * (8 * 12 + 4 * 6 + 2 * 3), 8)
    anchor, row, column = 1, 2, 5  # at stride 16; its anchor is 66 x 26 pixels
    t = [1 / (1 + math.exp(-v)) for v in maps[1][0, anchor, row, column].tolist()]
    box = decoded[0, 3 * 8 * 12 + (anchor * 4 + row) * 6 + column].tolist()
    expected = [(2 * t[0] - 0.5 + 5) * 16, (2 * t[1] - 0.5 + 2) * 16]
    expected += [(2 * t[2]) ** 2 * 66, (2 * t[3]) ** 2 * 26, *t[4:]]
    assert box == pytest.approx(expected)


# Numbers of layers and their filters in the published tables: the ends of all blocks.
PUBLISHED = {
    yolov7: {
        **{0: (32, 3, 3), 3: (128, 64, 3), 4: (64, 128, 1), 9: (64, 64, 3), 11: (256, 256, 1)},
        **{13: (128, 256, 1), 15: (128, 128, 3), 24: (512, 512, 1), 37: (1024, 1024, 1)},
        **{41: (512, 512, 3), 43: (256, 1024, 1), 50: (1024, 1024, 1), 52: (256, 512, 1)},
        **{54: (256, 1024, 1), 58: (128, 256, 3), 63: (256, 1024, 1), 66: (128, 512, 1)},
        **{75: (128, 512, 1), 79: (128, 128, 3), 81: (256, 512, 1), 88: (256, 1024, 1)},
        **{94: (512, 1024, 1), 101: (512, 2048, 1)},
    },
    yolov7_tiny: {
        **{0: (32, 3, 3), 1: (64, 32, 3), 2: (32, 64, 1), 5: (32, 32, 3), 7: (64, 128, 1)},
        **{14: (128, 256, 1), 21: (256, 512, 1), 28: (512, 1024, 1), 29: (256, 512, 1)},
        **{35: (256, 1024, 1), 37: (256, 512, 1), 40: (128, 256, 1), 47: (128, 256, 1)},
        **{50: (64, 128, 1), 57: (64, 128, 1), 58: (128, 64, 3), 65: (128, 256, 1)},
        **{66: (256, 128, 3), 73: (256, 512, 1), 74: (128, 64, 3), 76: (512, 256, 3)},
    },
}


@pytest.mark.parametrize("build", BUILD)
def test_names_are_those_of_the_published_layers(build: Build) -> None:
    with torch.device("meta"):
        model = build()
    names = published_names(model)
    assert len(set(names.values())) == len(names)
    shapes = {names[k]: tuple(v.shape) for k, v in model.state_dict().items()}
    for number, (outputs, inputs, size) in PUBLISHED[build].items():
        assert shapes[f"model.{number}.conv.weight"] == (outputs, inputs, size, size)
    assert shapes[f"model.{77 if build is yolov7_tiny else 105}.m.0.weight"][0] == 255


def test_published_weights_load_all_or_nothing() -> None:
    model, source = small(yolov7), small(yolov7, seed=1)
    names = published_names(source)
    state = {names[k]: v for k, v in source.state_dict().items()}
    before = copy.deepcopy(model.state_dict())
    lacking = {k: v for k, v in state.items() if k != "model.105.m.2.bias"}
    reshaped = {**state, "model.0.conv.weight": torch.zeros(1)}
    for wrong, words in (
        (lacking, "lack 'model.105.m.2.bias'"),
        ({**state, "model.106.bias": torch.zeros(1)}, "no layer for 'model.106.bias'"),
        (reshaped, "'model.0.conv.weight' has shape"),
    ):
        with pytest.raises(obc.ObcError, match=words):
            load_published(model, wrong)
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    load_published(model, {**state, "model.105.anchor_grid": torch.zeros(3)})
    x = torch.rand(1, 3, 64, 64).double()
    assert all(torch.equal(a, b) for a, b in zip(model(x), source(x), strict=True))


def test_published_files_are_read_without_running_code(tmp_path: Path) -> None:
    model, source = small(yolov7_tiny).float(), small(yolov7_tiny, seed=1).float()
    names = published_names(source)
    state = {names[k]: v for k, v in source.state_dict().items()}
    save_file(state, tmp_path / "a.safetensors")
    torch.save(state, tmp_path / "b.pt")
    torch.save({"model": state, "epoch": 3}, tmp_path / "c.pt")
    for file in ("a.safetensors", "b.pt", "c.pt"):
        load_published(model, read_published(tmp_path / file))
        ours, theirs = model.state_dict(), source.state_dict()
        assert all(torch.equal(v, theirs[k]) for k, v in ours.items())
    torch.save({"model": source}, tmp_path / "module.pt")
    with pytest.raises(obc.ObcError, match="holds more than tensors, and reading it would run"):
        read_published(tmp_path / "module.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(obc.ObcError, match="is no state dict"):
        read_published(tmp_path / "list.pt")
    with pytest.raises(obc.ObcError, match="cannot be read"):
        read_published(tmp_path / "none.pt")


def test_weights_of_another_number_of_classes() -> None:
    model, source = yolov7_tiny(3, width=0.125), yolov7_tiny(80, width=0.125)
    names = published_names(source)
    state = {names[k]: v for k, v in source.state_dict().items()}
    with pytest.raises(obc.ObcError, match=r"build the network with the number of classes"):
        load_published(model, state)


@pytest.mark.parametrize("build", BUILD)
def test_half_of_all_channels_can_go_with_proof(build: Build) -> None:
    model, x = small(build), torch.rand(1, 3, 64, 64).double()
    sites = obc.trace(model, x)
    assert {frozen.layer for frozen in sites.frozen} == {f"detect.m.{i}" for i in range(3)}
    kept = {site.name: torch.arange(max(1, site.size // 2)) for site in sites}
    pruned = obc.apply(copy.deepcopy(model), obc.Plan.from_kept(sites, kept), example=x)
    assert obc.cost(pruned, x).macs < 0.35 * obc.cost(model, x).macs
    assert pruned.fuse()(x)[0].shape == (1, 3, 8, 8, 8)
