"""What models cost: published figures, hand-counted layers, and less after a cut."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import obc
from obc.models import resnet56, vgg19
from tests import hugging, vision
from tests.cases import case
from tests.nets.attention import FusedAttention, SeparateAttention
from tests.nets.wrap import Wrap
from tests.reference import random_kept
from tests.untouched import untouched

zoo = [
    pytest.mark.torchvision,
    pytest.mark.skipif(not vision.installed("torchvision"), reason="torchvision is not installed"),
]


def from_zoo(name: str) -> Callable[[], nn.Module]:
    return lambda: vision.torchvision_model(name, num_classes=1000)


@pytest.mark.parametrize(
    ("build", "size", "macs", "params"),
    [
        pytest.param(resnet56, 32, 0.13, 0.86, id="resnet56"),
        pytest.param(vgg19, 32, 0.51, 20.09, id="vgg19"),
        pytest.param(from_zoo("resnet50"), 224, 4.1, 25.56, id="resnet50", marks=zoo),
        pytest.param(from_zoo("mobilenet_v2"), 224, 0.3, 3.50, id="mobilenet_v2", marks=zoo),
        pytest.param(from_zoo("vit_b_16"), 224, 17.6, 86.57, id="vit_b_16", marks=zoo),
    ],
)
def test_published_figures(
    build: Callable[[], nn.Module], size: int, macs: float, params: float
) -> None:
    with torch.device("meta"):
        model, example = build(), torch.zeros(1, 3, size, size)
    found = obc.cost(model, example)
    digits = 1 if macs > 1 else 2
    assert round(found.macs / 1e9, digits) == macs
    assert found.params / 1e6 == pytest.approx(params, abs=0.006)


LAYERS = {
    "linear": (nn.Linear(4, 8), (3, 4), 3 * 4 * 8),
    "linear over tokens": (nn.Linear(4, 8, bias=False), (2, 5, 4), 2 * 5 * 4 * 8),
    "conv": (nn.Conv2d(3, 8, 3, stride=2), (2, 3, 9, 9), 2 * 16 * 8 * 3 * 9),
    "grouped": (nn.Conv2d(6, 9, 3, groups=3), (1, 6, 5, 5), 9 * 9 * 2 * 9),
    "depthwise": (nn.Conv1d(6, 6, 5, groups=6), (1, 6, 9), 5 * 6 * 5),
    "transposed": (nn.ConvTranspose2d(6, 4, 2, 2), (1, 6, 3, 3), 9 * 6 * 4 * 4),
    "bare": (
        Wrap(lambda m, x: x @ m.weight, weight=nn.Parameter(torch.ones(4, 8))),
        (3, 4),
        3 * 4 * 8,
    ),
    "einsum": (
        Wrap(lambda m, x: torch.einsum("nd,dhk->nhk", x, m.w), w=nn.Parameter(torch.ones(4, 2, 3))),
        (3, 4),
        3 * 4 * 6,
    ),
    "norm": (nn.BatchNorm1d(4), (3, 4), 0),
    # Queries, keys, values and output, then each pair of 7 tokens twice in every head.
    "attention": (FusedAttention(12, 3, 4, "unbind"), (2, 7, 12), 2 * (7 * 4 * 144 + 2 * 49 * 12)),
    "scaled dot product": (
        SeparateAttention(12, 6, 2, 5),
        (2, 7, 12),
        2 * (7 * 12 * (30 + 10 + 10 + 30) + 2 * 49 * 30),
    ),
    "torch's attention": (
        Wrap(
            lambda m, x: m.inner(x, x, x)[0], inner=nn.MultiheadAttention(12, 3, batch_first=True)
        ),
        (2, 7, 12),
        2 * (7 * 4 * 144 + 2 * 49 * 12),
    ),
    "lstm": (nn.LSTM(4, 6, batch_first=True), (2, 5, 4), 2 * 5 * 4 * 6 * (4 + 6)),
    "gru cell": (nn.GRUCell(4, 6), (2, 4), 2 * 3 * 6 * (4 + 6)),
}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", LAYERS)
def test_counted_by_hand(name: str, device: str) -> None:
    layer, shape, macs = LAYERS[name]
    model = copy.deepcopy(layer).to(device)
    with untouched(model):
        assert obc.cost(model, torch.zeros(shape, device=device)).macs == macs


@pytest.mark.parametrize("name", ["resnet20", "qkv_chunk", "bare_weights", "mha", "tied_embedding"])
def test_layers_sum_to_the_total(name: str) -> None:
    net = case(name)
    found = obc.cost(net.model(), net.example())
    assert found.macs == sum(layer.macs for layer in found.layers.values()) > 0
    assert found.params == sum(layer.params for layer in found.layers.values())


def test_layers_by_name() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    found = obc.cost(model, torch.zeros(3, 4))
    assert {name: (c.macs, c.params) for name, c in found.layers.items()} == {
        "0": (96, 40),
        "2": (48, 18),
    }
    assert str(found) == "0.000 G MACs, 0.000 M parameters"


@pytest.mark.parametrize("name", ["resnet20", "groups_two", "qkv_chunk", "encoder", "flatten_7x7"])
def test_a_pruned_model_costs_less_in_every_layer_that_lost_something(name: str) -> None:
    net = case(name)
    model, example = net.model(), net.example()
    before = obc.cost(model, example)
    sites = obc.trace(model, example)
    obc.apply(model, obc.Plan.from_kept(sites, random_kept(sites)), example=example)
    after = obc.cost(model, example)
    assert after.params == sum(p.numel() for p in model.parameters()) < before.params
    lost = {m.layer for s in sites for m in s.members}
    for layer in lost & before.layers.keys():
        assert after.layers[layer].params < before.layers[layer].params
        assert after.layers[layer].macs < before.layers[layer].macs or not before.layers[layer].macs


def test_a_decoder_too_large_to_hold() -> None:
    """Traced, cut and counted without any memory for its weights."""
    pytest.importorskip("transformers")
    shape = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32}
    with torch.device("meta"):
        model = hugging.decoder("Llama", **shape, num_key_value_heads=8, vocab_size=32000)
        example = {"input_ids": torch.zeros(1, 16, dtype=torch.long), "use_cache": False}
    before = obc.cost(model, example)
    assert before.params > 5e8
    sites = obc.trace(model, example)
    assert {s.size for s in sites} == {4096, 11008, 8}
    kept = {s.name: range(s.size // 2) for s in sites}
    obc.apply(model, obc.Plan.from_kept(sites, kept))
    after = obc.cost(model, example)
    assert all(p.is_meta for p in model.parameters())
    assert after.params < 0.5 * before.params
    layer = model.model.layers[0]
    assert layer.self_attn.q_proj.weight.shape == (2048, 2048)
    assert layer.self_attn.k_proj.weight.shape == (512, 2048)
    assert layer.mlp.down_proj.weight.shape == (2048, 5504)
