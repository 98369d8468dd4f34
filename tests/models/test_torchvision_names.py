"""The paper's ImageNet models against torchvision's: the same names, and the same outputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

import obc
from obc.models import mobilenet_v2, resnet50, vit_b_16
from obc.models.resolver import OWN
from tests.sensitive import sensitive
from tests.vision import import_torchvision, installed, torchvision_model

pytestmark = [
    pytest.mark.torchvision,
    pytest.mark.skipif(not installed("torchvision"), reason="no torchvision"),
]


def small_vit() -> nn.Module:
    kind = import_torchvision().models.VisionTransformer
    return kind(32, 16, num_layers=2, num_heads=3, hidden_dim=48, mlp_dim=192, num_classes=6)


PAIRS = {
    "resnet50": (partial(torchvision_model, "resnet50", width_per_group=64), resnet50),
    "mobilenet_v2": (partial(torchvision_model, "mobilenet_v2"), mobilenet_v2),
    "mobilenet_v2 of width 0.35": (
        partial(torchvision_model, "mobilenet_v2", width_mult=0.35),
        partial(mobilenet_v2, width_mult=0.35),
    ),
    "vit": (small_vit, partial(vit_b_16, 32, dim=48, depth=2, heads=3)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_state_of_torchvision_gives_the_same_outputs(name: str) -> None:
    theirs, ours = PAIRS[name]
    example = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    reference = sensitive(theirs(), 0, (example,))
    model = sensitive(ours(num_classes=6), 1, (example,))
    with torch.no_grad():
        outputs = reference(example)
        assert not torch.allclose(model(example), outputs, rtol=1e-3)
        model.load_state_dict(reference.state_dict())
        torch.testing.assert_close(model(example), outputs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2", "vit_b_16"])
def test_published_sizes_and_shapes(name: str) -> None:
    with torch.device("meta"):
        theirs = import_torchvision().models.get_model(name, weights=None).state_dict()
        ours = OWN[name]().state_dict()
    assert {k: v.shape for k, v in ours.items()} == {k: v.shape for k, v in theirs.items()}


@pytest.mark.parametrize(
    ("build", "example", "frozen"),
    [
        (partial(resnet50, 5, width=8), (1, 3, 32, 32), {"fc"}),
        (partial(mobilenet_v2, 5, width_mult=0.1), (1, 3, 32, 32), {"classifier.1"}),
        (partial(vit_b_16, 32, 5, 3, 24, 2, 3), (1, 3, 32, 32), {"heads.head"}),
    ],
)
def test_all_but_the_classifier_can_be_pruned(
    build: Callable[[], nn.Module], example: tuple[int, ...], frozen: set[str]
) -> None:
    model, x = build().eval(), torch.randn(example)
    sites = obc.trace(model, x)
    assert {reason.layer for reason in sites.frozen} == frozen
    kept = {site.name: torch.arange(max(1, site.size // 2)) for site in sites}
    obc.apply(model, obc.Plan.from_kept(sites, kept), example=x)
