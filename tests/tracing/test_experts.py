"""Whole experts of a mixture: a site with the router's rows, cut as if they were never picked."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import obc
from obc.errors import ObcError
from obc.search.choice import kind_of
from tests import vision
from tests.hugging import decoder, import_transformers
from tests.nets.mixtures import MaskedMixture, Mixture, MixtureNet, SortedMixture

pytestmark = pytest.mark.skipif(
    not vision.installed("transformers"), reason="transformers is not installed"
)
# Rows of whole 16 bytes, as the kernel wants them.
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_key_value_heads": 2}
IDS = torch.arange(24).view(2, 12) % 17


def mixture(name: str) -> Any:
    torch.manual_seed(0)
    if name == "Mixtral":
        return decoder(name, **SIZES, num_local_experts=5, num_experts_per_tok=2).eval()
    shared = {"shared_expert_intermediate_size": 40} if name == "Qwen2Moe" else {}
    inner = {"moe_intermediate_size": 24, "num_experts": 6, "num_experts_per_tok": 3}
    return decoder(name, **SIZES, **inner, **shared).eval()


class Without(nn.Module):
    """A router to which some experts are never the best, written out."""

    def __init__(self, gate: Any, gone: list[int]) -> None:
        super().__init__()
        self.gate, self.gone = gate, gone

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = x.reshape(-1, x.shape[-1]) @ self.gate.weight.T
        logits[:, self.gone] = -torch.inf
        values, numbers = logits.softmax(-1).topk(self.gate.top_k, -1)
        if getattr(self.gate, "norm_topk_prob", True):
            values = values / values.sum(-1, keepdim=True)
        return logits, values, numbers


def without(model: Any, gone: list[int]) -> Tensor:
    other = copy.deepcopy(model)
    for layer in other.model.layers:
        layer.mlp.gate = Without(layer.mlp.gate, gone)
    with torch.no_grad():
        logits: Tensor = other(IDS).logits
    return logits


@pytest.mark.parametrize(
    "name",
    ["Mixtral", *(pytest.param(n, marks=pytest.mark.slow) for n in ("Qwen2Moe", "Qwen3Moe"))],
)
def test_cut_they_are_never_picked(name: str, tmp_path: Path) -> None:
    model = mixture(name)
    sites = obc.trace(model, IDS)
    experts = [s for s in sites if kind_of(s) == "experts"]
    assert len(experts) == 2 and {s.picked for s in experts} == {2 if name == "Mixtral" else 3}
    for site in experts:
        stacks = [m.param for m in site.members if m.role == "in"]
        assert stacks == ["gate_up_proj", "down_proj"] and site.members[0].layer == site.name
    kept = {s.name: [i for i in range(s.size) if i not in (1, 4)] for s in experts}
    small = obc.apply(copy.deepcopy(model), obc.Plan.from_kept(sites, kept))
    stack = small.model.layers[0].mlp.experts
    assert len(stack.gate_up_proj) == len(stack.down_proj) == experts[0].size - 2
    with torch.no_grad():
        logits = small(IDS).logits
    torch.testing.assert_close(logits, without(model, [1, 4]))
    assert (logits - without(model, [0, 4])).abs().max() > 1e-4
    obc.save(small, tmp_path / "small")
    twin = import_transformers().AutoModelForCausalLM.from_pretrained(tmp_path / "small")
    with torch.no_grad():
        torch.testing.assert_close(twin(IDS).logits, logits)


def test_ranked_as_units_and_never_fewer_than_are_picked() -> None:
    model = mixture("Mixtral")

    def loss(net: Any, ids: Tensor) -> Tensor:
        found: Tensor = net(ids, labels=ids).loss
        return found

    sites = obc.trace(model, IDS)
    scores = obc.score(model, sites, [IDS], loss, block="group")
    gate, stack = model.model.layers[0].mlp.gate, model.model.layers[0].mlp.experts
    tensors = (gate.weight, stack.gate_up_proj, stack.down_proj)
    grads = torch.autograd.grad(loss(model, IDS), tensors)
    products = sum((w * g).flatten(1).sum(1) for w, g in zip(tensors, grads, strict=True))
    expected = torch.as_tensor(products).detach().square().double()
    found = scores["model.layers.0.mlp.gate"]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.max()))
    settings: dict[str, Any] = {"sites": "experts", "step": 0.1}
    plan = obc.plan(model, IDS, [IDS], loss, target="channels=80%", **settings)
    assert [len(k) for k in plan.kept.values()] == [2, 2]
    with pytest.raises(ObcError, match="cannot be met"):
        obc.plan(model, IDS, [IDS], loss, target="channels=70%", **settings)


@pytest.mark.parametrize("count, picked", [(4, 2), (8, 6)])
def test_any_number_of_them_of_which_fewer_are_picked(count: int, picked: int) -> None:
    numbers = {"num_local_experts": count, "num_experts_per_tok": picked}
    model = decoder("Mixtral", **SIZES, **numbers).eval()
    experts = [s for s in obc.trace(model, IDS) if kind_of(s) == "experts"]
    assert [(s.size, s.picked) for s in experts] == 2 * [(count, picked)]


@pytest.mark.parametrize("kind", [MaskedMixture, SortedMixture])
def test_experts_of_a_list_stay_and_their_inner_channels_go(kind: type[Mixture]) -> None:
    """Modules of a list are not counted by any dimension; against zeros in the readers' place."""
    net, x = MixtureNet(kind).double().eval(), torch.randn(24, 6, dtype=torch.float64)
    sites = obc.trace(net, x)
    inner = [s for s in sites if ".experts." in s.name]
    assert [s.size for s in inner] == 2 * [12, 13, 14, 15]
    assert [f.layer for f in sites.frozen] == ["blocks.0.router", "blocks.1.router", "head"]
    kept = {
        s.name: [c for c in range(s.size) if c % 3 != number % 3] for number, s in enumerate(inner)
    }
    small = obc.apply(copy.deepcopy(net), obc.Plan.from_kept(sites, kept))
    assert small.blocks[1].experts[3].down.in_features == 10
    for name, channels in kept.items():
        down = net.get_submodule(name.removesuffix("gate") + "down").weight
        gone = torch.ones(down.shape[1], dtype=torch.bool)
        gone[channels] = False
        assert (small(x) - net(x)).abs().max() > 1e-6
        with torch.no_grad():
            down[:, gone] = 0
    torch.testing.assert_close(small(x), net(x))


class Largest(nn.Module):
    """The largest channels as a feature: which of them they are matters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 9), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).topk(3, -1).values)


def test_what_is_picked_for_other_ends_stays() -> None:
    sites = obc.trace(Largest(), torch.randn(2, 6))
    assert not len(sites)
    assert "the order of channels matters" in str(sites.frozen[0])
