"""What cannot be pruned is listed, with the operator or layer that holds it and why."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import obc
from tests.cases import Case, case, cases
from tests.nets.wrap import Wrap
from tests.parameters import parameters

# Reasons that lie in the model and leave nothing to complain about.
FAIR = {
    "model output",
    "rows of a table are picked by index",
    "multiplied with data that does not shrink",
    "all of it is one unit",
    "LSTM layers are not pruned",
    "GRU layers are not pruned",
}


def reasons(name: str) -> dict[str, str]:
    net = case(name)
    return {f.layer: f.reason for f in obc.trace(net.model(), net.example()).frozen}


def test_model_outputs() -> None:
    assert reasons("dict_output") == {"conv2.0": "model output", "head.fc": "model output"}
    assert reasons("tuple_output") == {"classes.fc": "model output", "boxes.1.fc": "model output"}


@pytest.mark.parametrize(
    ("kind", "op"), [("bilinear", "_trilinear"), ("fft", "_fft_r2c"), ("cdist", "_cdist_forward")]
)
def test_an_unknown_operator_is_named_with_its_place(kind: str, op: str) -> None:
    net = case(f"unknown_{kind}")
    sites = obc.trace(Wrap(lambda m, x: m.inner(x), inner=net.model()), net.example())
    found = next(f for f in sites.frozen if f.layer == "inner.left")
    assert found.reason == f"no rule for aten::{op}"
    assert found.op == op
    assert "inner" in found.where and "wiring.py:" in found.where
    assert "inner.after" in sites.names, "what comes later still prunes"


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_recurrent_layers_are_frozen_and_the_rest_prunes(kind: str) -> None:
    net = case(kind)
    sites = obc.trace(net.model(), net.example())
    found = {f.layer: f.reason for f in sites.frozen}
    assert found["conv2"] == f"{kind.upper()} layers are not pruned"
    assert set(sites.names) == {"conv1", "out", "branch.0"}
    assert not any(m.layer == "rnn" for s in sites for m in s.members)


class Read(nn.Module):
    """A recurrent layer over the input itself, and a layer that reads it."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.rnn, self.head = kind(5, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0])


@pytest.mark.parametrize(
    ("model", "example", "layer"),
    [
        (Read(nn.LSTM), torch.zeros(2, 4, 5), "rnn"),
        (Read(nn.GRU), torch.zeros(2, 4, 5), "rnn"),
        (nn.Sequential(nn.EmbeddingBag(7, 5), nn.Linear(5, 2)), torch.zeros(2, 3).long(), "0"),
        (
            Wrap(
                lambda m, x: m.head(m.pair(x, x)), pair=nn.Bilinear(5, 5, 4), head=nn.Linear(4, 2)
            ),
            torch.zeros(2, 5),
            "pair",
        ),
    ],
    ids=["lstm", "gru", "embedding bag", "bilinear"],
)
def test_a_layer_that_is_not_pruned_is_listed_itself(
    model: nn.Module, example: Tensor, layer: str
) -> None:
    sites = obc.trace(model, example)
    assert layer in {f.layer for f in sites.frozen} | {m.layer for s in sites for m in s.members}


def test_quantized_layers_are_listed_with_what_reaches_them() -> None:
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch is about to move its quantization elsewhere
        quantized = torch.ao.quantization.quantize_dynamic(head, {nn.Linear})
        recurrent = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.GRU(4, 6)), {nn.GRU})
    packed = "weights are packed, as quantized"
    sites = obc.trace(quantized, torch.rand(2, 8))
    assert [(f.layer, f.size, f.reason) for f in sites.frozen] == [
        ("0", 6, packed),
        ("2", 2, packed),
    ]
    assert {(f.layer, f.size) for f in obc.trace(recurrent, torch.rand(2, 1, 4)).frozen} == {
        ("0", 6)
    }
    whole = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), quantized)
    assert {f.layer for f in obc.trace(whole, torch.rand(2, 4)).frozen} == {"0", "2.0", "2.2"}


def test_untouched_parameters_are_listed_and_hold_their_partners() -> None:
    net = case("unused_branch")
    sites = obc.trace(net.model(), net.example())
    assert sites.untouched == ("large.0.weight", "large.1.weight", "large.1.bias")
    assert sites.names == ("last.0",)
    found = next(f for f in sites.frozen if f.layer == "stem.0")
    assert "'large.1.bias' was not reached and may be coupled" in found.reason


def test_an_expert_that_is_never_reached() -> None:
    net = case("experts")
    sites = obc.trace(net.model(), net.example())
    assert {name.split(".")[1] for name in sites.untouched} == {"2"}
    assert not any(m.name in sites.untouched for s in sites for m in s.members)


def test_literal_sizes_are_frozen_and_shown() -> None:
    net = case("view_literal")
    (found,) = [f for f in obc.trace(net.model(), net.example()).frozen if f.layer == "conv.0"]
    assert "shape '[-1, 8]' is invalid" in found.reason and "blocks.py:" in found.where


def test_as_text() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    sites = obc.trace(model, torch.zeros(1, 4))
    assert str(sites.frozen[0]).startswith("2 (2 channels): model output")
    assert "0: 8 x 3 members" in repr(sites) and "frozen 2 (2 channels)" in repr(sites)


@pytest.mark.parametrize("case", parameters(*cases("must")))
def test_what_must_prune_is_held_by_nothing_else(case: Case) -> None:
    sites = obc.trace(case.model(), case.example())
    assert sites
    held = [str(f) for f in sites.frozen if f.reason not in FAIR]
    # Its sequence reduction reshapes one layer's output to another's width: the two must shrink
    # by the same number, which no unit of ours says.
    assert not held or (case.name == "segformer" and all("modeling_segformer" in f for f in held))


def test_a_shape_in_a_message_never_hides_a_site() -> None:
    """A layer with a part that stays has both a site and an entry."""

    def run(m: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        y = m.wide(x)
        return m.head(y), y[:, :3]

    model = Wrap(run, wide=nn.Linear(5, 9), head=nn.Linear(9, 2))
    sites = obc.trace(model, torch.zeros(2, 5))
    assert sites["wide"].size == 6
    assert [f.size for f in sites.frozen if f.layer == "wide"] == [3]
