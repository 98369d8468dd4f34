"""Layers are known by their class, never by the mere name of it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import obc
from obc.tracing import layers

X = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))


class Scaled(nn.Module):
    """A layer of a user, with sizes that no handler of obc's may touch."""

    num_embeddings, embedding_dim, nx, nf, num_features = "a", "b", "c", "d", "e"

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


@pytest.mark.parametrize("name", ["Embedding", "Conv1D", "_NormBase", "Linear", "GroupNorm"])
def test_a_user_class_of_the_same_name_has_no_handler(name: str) -> None:
    kind = type(name, (Scaled,), {})
    model = nn.Sequential(nn.Linear(5, 8), kind(), nn.Linear(8, 3))
    assert layers.find_handler(model[1]) is None and layers.plain_axes(model[1]) is None
    plan = obc.Plan.from_kept(obc.trace(model, X), {"0": [0, 2, 5]})
    pruned = obc.apply(copy.deepcopy(model), plan)
    assert pruned[1].weight.shape == (3,) and vars(pruned[1]).keys() == vars(model[1]).keys()


def test_derived_classes_have_the_handler_of_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "_HANDLERS", dict(layers._HANDLERS))

    class Wide(nn.Linear):
        pass

    assert layers.find_handler(Wide(2, 3)) is layers.linear
    assert layers.find_handler(nn.SyncBatchNorm(2)) is layers.batch_norm

    @obc.handler(Wide)
    def wide(module: nn.Module, kept: layers.Kept) -> None: ...

    assert layers.find_handler(Wide(2, 3)) is wide
    assert layers.find_handler(nn.Linear(2, 3)) is layers.linear


def test_a_class_of_another_library_is_known_by_its_full_name() -> None:
    kind = type("Conv1D", (Scaled,), {"__module__": "transformers.pytorch_utils"})
    assert layers.find_handler(kind()) is layers.conv1d_of_hugging_face
    kind = type("Conv1D", (Scaled,), {"__module__": "transformers.elsewhere"})
    assert layers.find_handler(kind()) is None


def test_a_bare_name_is_refused() -> None:
    with pytest.raises(obc.ObcError, match="'Conv1D' could be anyone's class"):
        obc.handler("Conv1D")


@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (nn.Linear(3, 5), (4,)),
        (nn.Conv1d(3, 5, 1), (4,)),
        (nn.Conv2d(3, 5, 1), (4, 4)),
        (nn.Conv3d(3, 5, 1), (4, 4, 4)),
        (nn.ConvTranspose1d(3, 5, 1), (4,)),
        (nn.ConvTranspose2d(3, 5, 1), (4, 4)),
        (nn.ConvTranspose3d(3, 5, 1), (4, 4, 4)),
    ],
    ids=lambda v: type(v).__name__,
)
def test_the_axes_are_where_the_channels_are(layer: nn.Module, size: tuple[int, ...]) -> None:
    axes = layers.plain_axes(layer)
    assert axes is not None and axes.reads is not None
    assert (layer.weight.shape[axes.out], layer.weight.shape[axes.reads]) == (5, 3)
    linear = isinstance(layer, nn.Linear)
    x = torch.zeros(2, *size, 3) if linear else torch.zeros(2, 3, *size)
    assert (x.shape[axes.data], layer(x).shape[axes.data]) == (3, 5)


def test_a_layer_that_computes_something_else_has_no_plain_axes() -> None:
    class Twice(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    assert layers.plain_axes(Twice(2, 3)) is None
    patched = nn.Linear(2, 3)
    patched.forward = lambda x: x  # type: ignore[method-assign]
    assert layers.plain_axes(patched) is None
