"""Equivalent `obc.apply` and `obc.merge`: what they build, refuse, and leave alone."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import obc
from obc.equivalent import check_state, is_equivalent
from obc.equivalent.factors import Factors
from obc.surgery.record import applied
from tests.cases import case
from tests.hugging import import_transformers
from tests.reference import random_kept
from tests.untouched import untouched


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.Flatten(),
        nn.Linear(6 * 4, 5),
    )  # fmt: skip


EXAMPLE = torch.zeros(1, 3, 6, 6)


def plan_of(net: nn.Module) -> obc.Plan:
    return obc.Plan.from_kept(obc.trace(net, EXAMPLE), {"0": [0, 2, 5], "3": [1, 2]})


def test_shapes_of_c_and_d() -> None:
    """C where outputs went, D where inputs did; D of a flattened map acts on channels."""
    net = network()
    obc.apply(net, plan_of(net), equivalent=True)
    shapes = {n: tuple(p.shape) for n, p in net.named_parameters() if ".matrices." in n}
    assert shapes == {
        "0.parametrizations.weight.0.C.0.matrices.0": (1, 3, 8),
        "3.parametrizations.weight.0.C.0.matrices.0": (1, 2, 6),
        "3.parametrizations.weight.0.D.0.matrices.0": (1, 3, 8),
        "5.parametrizations.weight.0.D.0.matrices.0": (1, 2, 6),
    }
    c = net[0].parametrizations.weight[0].C[0].matrices[0][0]
    assert torch.equal(c, torch.eye(8)[[0, 2, 5]])


@pytest.mark.parametrize(
    ("name", "weight", "shapes"),
    [
        ("densenet", "block1.3.conv1.weight", {"C": (1, 6, 9), "D": (1, 14, 7 + 5 + 5 + 5)}),
        ("groups_two", "grouped1.0.weight", {"C": (2, 6, 8), "D": (2, 8, 12)}),
        ("glu_chunk", "gate_up.0.weight", {"C": (2, 9, 13), "D": (1, 7, 10)}),
        ("qkv_unbind", "blocks.0.attention.qkv.weight", {"C": (12, 2, 3)}),
        ("qkv_unbind", "blocks.0.attention.proj.weight", {"D": (4, 2, 3)}),
    ],
)
@pytest.mark.filterwarnings("ignore:sliced, without C and D")
def test_blocks(name: str, weight: str, shapes: dict[str, Any]) -> None:
    """Concatenated inputs have one D, groups and fused parts a matrix each."""
    model, example = case(name).model(), case(name).example()
    sites = obc.trace(model, example)
    plan = obc.Plan.from_kept(sites, random_kept(sites))
    obc.apply(model, plan, example=example, equivalent=True)
    layer, _, key = weight.rpartition(".")
    factors: Any = model.get_submodule(layer).parametrizations[key][0]
    for side, wanted in shapes.items():
        (mix,) = getattr(factors, side)
        assert [tuple(p.shape) for p in mix.matrices] == [wanted]


def test_twice_is_refused() -> None:
    net = network()
    plan = plan_of(net)
    obc.apply(net, plan, equivalent=True)
    for how in ({"equivalent": True}, {}):
        with untouched(net), pytest.raises(obc.ObcError, match=r"obc\.merge\(model\) first"):
            obc.apply(net, plan, **how)
    assert applied(net) == (plan,)


def test_merge_leaves_a_plain_module_alone() -> None:
    net = network()
    with untouched(net):
        assert obc.merge(net) is net
    obc.merge(obc.apply(net, plan_of(net), equivalent=True))
    with untouched(net):
        assert obc.merge(net) is net


def test_merging_what_others_changed_is_refused() -> None:
    net = network()
    obc.apply(net, plan_of(net), equivalent=True)
    twin = copy.deepcopy(net)
    nn.utils.parametrizations.spectral_norm(twin[5], "weight")
    with untouched(twin), pytest.raises(obc.ObcError, match="'5' has parametrizations beside C"):
        obc.merge(twin)
    kind = type("Wrapped", (type(net[3]),), {})
    net[3].__class__ = kind  # what fully_shard does
    with untouched(net), pytest.raises(obc.ObcError, match="'3' has become a Wrapped"):
        obc.merge(net)


def test_bad_words_are_refused() -> None:
    net = network()
    plan = plan_of(net)
    step = torch.optim.SGD(net.parameters(), 0.1)
    for says, how in (
        ("no init named 'random'", {"equivalent": True, "init": "random"}),
        (
            r"make it afterwards, from obc\.parameter_groups",
            {"equivalent": True, "optimizer": step},
        ),
    ):
        with untouched(net), pytest.raises(obc.ObcError, match=says):
            obc.apply(net, plan, **how)  # type: ignore[arg-type]


def test_a_failure_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    net = network()
    plan = plan_of(net)
    right = Factors.forward
    monkeypatch.setattr(Factors, "forward", lambda self, w: 2 * right(self, w))
    with untouched(net), pytest.raises(obc.ObcError, match="the model is as it was"):
        obc.apply(net, plan, equivalent=True)
    monkeypatch.setattr(Factors, "forward", right)
    obc.apply(net, plan, equivalent=True)


def test_a_state_of_the_other_kind_is_refused() -> None:
    net, naive = network(), network()
    obc.apply(net, plan_of(net), equivalent=True)
    obc.apply(naive, plan_of(naive))
    with pytest.raises(obc.ObcError, match="the state holds C and D"):
        check_state(naive, net.state_dict())
    with pytest.raises(obc.ObcError, match="the model holds C and D"):
        check_state(net, naive.state_dict())
    check_state(naive, naive.state_dict())
    check_state(net, net.state_dict())
    for target, state in ((naive, net.state_dict()), (net, naive.state_dict())):
        with pytest.raises(RuntimeError, match=r"parametrizations\.weight"):
            target.load_state_dict(state)


def test_what_has_no_factors_is_told() -> None:
    model, example = case("tied_embedding").model(), case("tied_embedding").example()
    sites = obc.trace(model, example)
    plan = obc.Plan.from_kept(sites, random_kept(sites))
    with pytest.warns(UserWarning, match=r"'embedding\.weight': one weight serves in several"):
        obc.apply(model, plan, example=example, equivalent=True)
    assert model.embedding.weight is model.head.weight
    with warnings.catch_warnings():  # a depthwise filter has nothing to mix: no word about it
        warnings.simplefilter("error")
        model, example = (
            case("depthwise_multiplier").model(),
            case("depthwise_multiplier").example(),
        )
        sites = obc.trace(model, example)
        obc.apply(model, obc.Plan.from_kept(sites, random_kept(sites)), equivalent=True)


class Listed(nn.Module):
    """Weights in a list and a dictionary, and one layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = nn.ParameterList([torch.randn(8, 4), torch.randn(6, 8)])
        self.named = nn.ParameterDict({"a": torch.randn(4, 6)})
        self.first = self.second = nn.Linear(4, 7)
        self.last = nn.Linear(7, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in (*self.listed, self.named["a"]):
            x = torch.relu(x @ weight.t())
        return self.last(torch.relu(self.second(x)))


def test_weights_in_lists_and_layers_with_two_names() -> None:
    net, x = Listed(), torch.randn(3, 4)
    sites = obc.trace(net, x)
    plan = obc.Plan.from_kept(sites, {s.name: range(s.size // 2) for s in sites})
    naive = obc.apply(copy.deepcopy(net), plan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        obc.apply(net, plan, equivalent=True)
    assert sum(isinstance(m, Factors) for m in net.modules()) == 5
    assert torch.allclose(net(x), naive(x))
    obc.merge(net)
    assert net.first is net.second
    assert list(net.state_dict()) == list(naive.state_dict())
    assert torch.allclose(net(x), naive(x))


def test_a_plan_that_keeps_everything_leaves_no_factors() -> None:
    net = network()
    obc.apply(net, obc.Plan.from_kept(obc.trace(net, EXAMPLE), {}), equivalent=True)
    assert not is_equivalent(net)


def test_a_merged_model_is_pruned_saved_and_exported_like_any_other(tmp_path: Path) -> None:
    net = network().eval()
    first = plan_of(net)
    obc.apply(net, first, equivalent=True)
    for p in net.parameters():
        p.data.add_(0.1 * torch.randn_like(p))
    obc.merge(net)
    x = torch.randn(2, 3, 6, 6)
    torch.save(net, tmp_path / "net.pt")  # a parametrized module could not be pickled
    again = torch.load(tmp_path / "net.pt", weights_only=False)
    assert torch.equal(again(x), net(x))
    exported = torch.export.export(copy.deepcopy(net), (x,))
    assert torch.allclose(exported.module()(x), net(x))
    sites = obc.trace(net, EXAMPLE)
    assert [(s.name, s.size) for s in sites] == [("0", 3), ("3", 2)]
    second = obc.Plan.from_kept(sites, {"0": [0, 2]})
    obc.merge(obc.apply(net, second, equivalent=True))
    assert net[0].weight.shape == (2, 3, 3, 3)
    assert applied(net) == (first, second)


def test_on_the_meta_device() -> None:
    net = network().to("meta")
    sites = obc.trace(net, EXAMPLE.to("meta"))
    plan = obc.Plan.from_kept(sites, {"0": [0, 2, 5], "3": [1, 2]})
    obc.apply(net, plan, equivalent=True)
    assert net[3].weight.shape == (2, 3, 3, 3)
    assert all(p.is_meta for p in net.parameters())
    assert obc.merge(net)[3].weight.shape == (2, 3, 3, 3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_hugging_face_trainer(tmp_path: Path) -> None:
    """Gradient accumulation, checkpointing, saving and resuming, all by HF's own loop."""
    transformers = import_transformers()
    net = case("llama").build()
    example = case("llama").example()
    sites = obc.trace(net, example)
    plan = obc.Plan.from_kept(sites, random_kept(sites))
    obc.apply(net, plan, example=example, equivalent=True)
    rows = [{"input_ids": r, "labels": r} for r in torch.randint(3, 53, (16, 9))]
    options = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=4, save_steps=2, per_device_train_batch_size=2,
        gradient_accumulation_steps=2, gradient_checkpointing=True, report_to=[], use_cpu=True,
        learning_rate=1e-2,
    )  # fmt: skip
    before = copy.deepcopy(net.state_dict())
    trainer = transformers.Trainer(net, options, train_dataset=rows)
    trainer.train()
    moved = [n for n, v in net.state_dict().items() if not torch.equal(v, before[n])]
    assert any(".matrices." in n for n in moved)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    trained = net.eval()(**example).logits
    assert torch.allclose(obc.merge(net)(**example).logits, trained, atol=1e-5)
