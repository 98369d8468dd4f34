"""Experts that are modules of a list: whole ones go with the router's rows, as if never picked."""

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
from tests.hugging import import_transformers
from tests.nets.mixtures import (
    CountedMixture,
    DenseMixture,
    MaskedMixture,
    Mixture,
    MixtureNet,
    OldMixtral,
    SharedMixture,
    SigmoidMixture,
    SortedMixture,
)

EXPERTS = 5
TEXTS: dict[str, Any] = {
    "input_ids": torch.arange(24).view(2, 12) % 17,
    "decoder_input_ids": torch.arange(14).view(2, 7) % 13,
    "use_cache": False,
}
KEPT = {"blocks.0.router": [0, 2, 3], "blocks.1.router": [1, 4]}


def network(kind: type[Mixture]) -> MixtureNet:
    torch.manual_seed(0)
    return MixtureNet(kind, (12,) * EXPERTS).double().eval()


def rows(count: int = 24, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 6, dtype=torch.float64, generator=generator)


def loss(net: nn.Module, x: Tensor) -> Tensor:
    value: Tensor = net(x).square().mean()
    return value


def cut(net: MixtureNet, kept: dict[str, list[int]], example: Tensor) -> Any:
    plan = obc.Plan.from_kept(obc.trace(net, example), kept)
    return obc.apply(copy.deepcopy(net), plan, example=example)


def by_hand(net: MixtureNet, x: Tensor, kept: dict[str, list[int]]) -> Tensor:
    """What the network puts out where other experts than these are no choice, row by row."""
    h = net.stem(x)
    block: Any
    for number, block in enumerate(net.blocks):
        chosen = torch.full((EXPERTS,), -torch.inf, dtype=torch.float64)
        chosen[kept[f"blocks.{number}.router"]] = 0
        out = []
        for row in h:
            odds = block.odds(block.router.weight @ row + chosen)
            best = odds.argsort(descending=True)[:2]
            made = sum(odds[e] / odds[best].sum() * block.experts[e](row) for e in best.tolist())
            if isinstance(block, SharedMixture):
                made = made + torch.sigmoid(block.shared_gate(row)) * block.shared_expert(row)
            out.append(made)
        h = h + torch.stack(out)
    y: Tensor = net.head(h)
    return y


LISTS = [MaskedMixture, SortedMixture, OldMixtral, SharedMixture, SigmoidMixture]


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("count", [24, 2])
def test_cut_they_are_never_picked(kind: type[Mixture], count: int) -> None:
    """With two rows most experts get none, and others run once some are gone."""
    net, x = network(kind), rows()
    sites = obc.trace(net, rows(count))
    whole = [s for s in sites if kind_of(s) == "experts"]
    assert [(s.name, s.size, s.picked) for s in whole] == [(n, EXPERTS, 2) for n in KEPT]
    assert "blocks.0.experts" in sites.names and not sites.untouched
    assert [f.layer for f in sites.frozen] == ["head"]
    small = cut(net, KEPT, rows(count))
    first, second = small.blocks
    assert type(first) is kind and len(first.experts) == first.num_experts == 3
    assert len(second.experts) == second.num_experts == second.router.out_features == 2
    assert first.experts[1].up.weight.equal(net.blocks[0].experts[2].up.weight)  # type: ignore[index]
    with torch.no_grad():
        torch.testing.assert_close(small(x), by_hand(net, x, KEPT))
        other = KEPT | {"blocks.0.router": [0, 1, 3]}
        assert (small(x) - by_hand(net, x, other)).abs().max() > 1e-3, "compares nothing"


@pytest.mark.parametrize("kind", [OldMixtral, SharedMixture])
def test_a_wrong_row_of_the_router_or_a_wrong_module_is_noticed(kind: type[Mixture]) -> None:
    net, x = network(kind), rows()
    plan = obc.Plan.from_kept(obc.trace(net, x), KEPT)
    small: Any = obc.apply(copy.deepcopy(net), plan, example=x)
    assert obc.verify(net, small, plan, x) < 1e-12
    block: Any = net.blocks[0]
    wrong = copy.deepcopy(small)
    wrong.blocks[0].router.weight.data = block.router.weight.data[[0, 1, 3]]
    with pytest.raises(ObcError, match="differs from the masked original"):
        obc.verify(net, wrong, plan, x)
    wrong = copy.deepcopy(small)
    wrong.blocks[0].experts[1] = copy.deepcopy(block.experts[1])
    with pytest.raises(ObcError, match="differs from the masked original"):
        obc.verify(net, wrong, plan, x)


@pytest.mark.parametrize("seed", range(3))
def test_inner_widths_and_the_residual_width_go_beside_them(seed: int) -> None:
    """Also in experts that the example reaches only when others are gone."""
    net, x = network(SharedMixture), rows(2, seed)
    inner = {"blocks.0.experts": list(range(2, 12)), "stem": [0, 1, 2, 4, 5, 7, 8, 9]}
    small = cut(net, KEPT | inner, x)
    assert small.blocks[0].experts[2].down.weight.shape == (8, 10)
    with torch.no_grad():
        for expert in net.blocks[0].experts:  # type: ignore[union-attr]
            expert.down.weight[:, :2] = 0
        for reader in [m for n, m in net.named_modules() if n.endswith(("gate", "up", "router"))]:
            reader.weight[:, [3, 6]] = 0  # type: ignore[index, operator]
        net.head.weight[:, [3, 6]] = 0
        torch.testing.assert_close(small(x), by_hand(net, x, KEPT))


@pytest.mark.parametrize("seed", range(4))
def test_experts_that_only_the_narrower_model_reaches(seed: int) -> None:
    """They are known by those that ran: what they read is masked like what the others do."""
    net, x = network(SigmoidMixture), rows(2, seed)
    inner = {"stem": [0, 3, 7], "blocks.0.experts": [1, 2], "blocks.1.experts": [3, 5, 6]}
    small = cut(net, inner, x)
    assert small.blocks[1].experts[4].up.weight.shape == (3, 3)


def test_scores_are_those_of_the_row_and_the_whole_expert() -> None:
    net, batches = network(OldMixtral), [rows(seed=s) for s in (2, 3)]
    sites = obc.trace(net, rows())
    block: Any = net.blocks[0]
    expected = torch.zeros(EXPERTS, dtype=torch.float64)
    for batch in batches:
        net.zero_grad()
        loss(net, batch).backward()
        for e in range(EXPERTS):
            owned = [(block.router.weight[e], block.router.weight.grad[e])]
            owned += [(p, p.grad) for p in block.experts[e].parameters() if p.grad is not None]
            expected[e] += sum(float((w * g).sum()) for w, g in owned) ** 2
    net.zero_grad()
    for fast in (True, False):
        found = obc.score(net, sites, batches, loss, block="group", fast=fast)
        torch.testing.assert_close(found["blocks.0.router"], expected)
    sizes = [
        float(block.router.weight[e].abs().sum())
        + sum(float(p.abs().sum()) for p in block.experts[e].parameters())
        for e in range(EXPERTS)
    ]
    found = obc.score(net, sites, criterion="l1")
    torch.testing.assert_close(found["blocks.0.router"].tolist(), sizes)


@pytest.mark.parametrize("target", ["params=55%", "macs=75%"])
def test_planned_beside_inner_widths_at_exact_cost(target: str) -> None:
    net, x = network(OldMixtral), rows()
    batches = [rows(seed=s) for s in range(4)]
    settings: dict[str, Any] = {"step": 0.15, "rows": 2, "sites": ["experts", "ffn"]}
    plan = obc.plan(net, x, batches, loss, target=target, **settings)
    small = obc.apply(copy.deepcopy(net), plan, example=x)
    gone = [EXPERTS - len(plan.kept.get(name, range(EXPERTS))) for name in KEPT]
    assert max(gone) > 0 and "blocks.0.experts" in plan.kept
    assert plan.after is not None
    cost = obc.cost(small, x)
    assert (plan.after.macs, plan.after.params) == (cost.macs, cost.params)


def test_a_working_copy_goes_on_where_a_cut_would() -> None:
    """Scores of the second step are those of a model that is cut by the first, and traced anew."""
    net, x = network(SharedMixture), rows()
    batches = [rows(seed=s) for s in range(2)]
    settings: dict[str, Any] = {"step": 0.25, "rows": 2, "scope": "local"}
    plan = obc.plan(net, x, batches, loss, target="params=30%", **settings)
    first = plan.at(1)
    assert any(n in first.kept for n in KEPT), "no expert goes in the first step"
    small = obc.apply(copy.deepcopy(net), first, example=x)
    sites = obc.trace(small, x)
    scores = obc.score(small, sites, batches, loss)
    for name, removed in plan.history[1].removed.items():
        places = first.kept.get(name, list(range(sites[name].size)))
        expected = scores[name][[places.index(c) for c in removed]]
        torch.testing.assert_close(plan.history[1].scores[name], expected.tolist())
    assert any(name.endswith("experts") for name in plan.history[1].removed)


def test_never_fewer_than_are_picked() -> None:
    net, x = network(MaskedMixture), rows()
    settings: dict[str, Any] = {"sites": "experts", "step": 0.1, "criterion": "l1"}
    least = 1 - 6 / sum(s.size for s in obc.trace(net, x))
    plan = obc.plan(net, x, target=obc.Channels(keep=least), **settings)
    assert [len(k) for k in plan.kept.values()] == [2, 2]
    with pytest.raises(ObcError, match="cannot be met"):
        obc.plan(net, x, target=obc.Channels(keep=least - 0.05), **settings)
    with pytest.raises(ObcError, match=r"'blocks.0.router': the plan keeps 1, and 2 are picked"):
        cut(net, {"blocks.0.router": [3]}, x)


def test_saved_loaded_and_cut_again(tmp_path: Path) -> None:
    net, x = network(OldMixtral), rows()
    small = cut(net, KEPT, x)
    again = obc.Plan.from_kept(obc.trace(small, x), {"blocks.0.router": [0, 2]})
    obc.apply(small, again, example=x)
    obc.save(small, tmp_path)
    twin = obc.load(network(OldMixtral), tmp_path)
    assert twin.state_dict().keys() == small.state_dict().keys()
    assert "blocks.0.experts.1.up.weight" in twin.state_dict()
    assert "blocks.0.experts.2.up.weight" not in twin.state_dict()
    with torch.no_grad():
        torch.testing.assert_close(twin(x), small(x), rtol=0, atol=0)
        expected = by_hand(net, x, KEPT | {"blocks.0.router": [0, 3]})
        torch.testing.assert_close(twin(x), expected)


def test_an_optimizer_forgets_what_went() -> None:
    net, x = network(SharedMixture), rows()
    sites = obc.trace(net, x)
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(2):
        loss(net, x).backward()
        optimizer.step()
    moved: Any = net.blocks[0].experts[2]  # type: ignore[index]
    momentum = optimizer.state[moved.up.weight]["exp_avg"]
    plan = obc.Plan.from_kept(sites, KEPT | {"blocks.0.experts": list(range(9))})
    obc.apply(net, plan, optimizer=optimizer, example=x)
    there = set(net.parameters())
    assert {p for group in optimizer.param_groups for p in group["params"]} == there
    assert set(optimizer.state) <= there
    assert optimizer.state[moved.up.weight]["exp_avg"].equal(momentum[:9])
    loss(net, x).backward()
    optimizer.step()


@pytest.mark.parametrize("kind", [OldMixtral, SharedMixture])
def test_what_stays_takes_over(kind: type[Mixture]) -> None:
    """Experts that moved up are fitted to what they were, and C and D start there."""
    net, x = network(kind).float(), rows().float()
    kept = KEPT | {"blocks.0.experts": list(range(8)), "blocks.1.experts": list(range(9))}
    plan = obc.Plan.from_kept(obc.trace(net, x), kept)
    batches = [rows(64, seed).float() for seed in range(8)]
    small = obc.apply(copy.deepcopy(net), plan, example=x)
    account = obc.recalibrate(small, net, batches, example=x)
    fits = {fit.name: fit for fit in account.fits}
    assert account.kept and fits["blocks.0.experts.2.down.weight"].kept
    assert "blocks.0.experts.3.down.weight" not in fits
    mixed = obc.apply(copy.deepcopy(net), plan, example=x, equivalent=True, init=small)
    obc.merge(mixed)
    with torch.no_grad():
        torch.testing.assert_close(mixed(x), small(x))


def test_sparse_learning_presses_the_smallest_expert_hardest() -> None:
    from obc.tuning.sparse import GroupSparsity

    net, x = network(OldMixtral), rows()
    sites = obc.trace(net, x)
    experts: Any = net.blocks[0].experts  # type: ignore[union-attr]
    with torch.no_grad():
        for p in (*experts[3].parameters(), net.blocks[0].router.weight[3]):  # type: ignore[union-attr, index]
            p.mul_(0.1)
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    press = GroupSparsity(sites, strength=1.0)
    press.sites = [s for s in sites if s.name == "blocks.0.router"]  # type: ignore[assignment]
    press(net)
    torch.testing.assert_close(experts[3].up.weight.grad, 16 * experts[3].up.weight)
    largest = [float((e.up.weight.grad / e.up.weight).mean()) for e in experts]
    assert min(largest) == pytest.approx(1)


class SharedWeight(MaskedMixture):
    """Two experts have one weight."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.experts[1].up.weight = self.experts[0].up.weight  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "kind, why",
    [
        (CountedMixture, "differs from the masked original"),
        (DenseMixture, "the modules of 'blocks.0.experts' run on other rows than are picked"),
        (SharedWeight, "the modules of 'blocks.0.experts' share 'up.weight'"),
    ],
)
def test_what_is_not_understood_stays_and_is_said(kind: type[Mixture], why: str) -> None:
    sites = obc.trace(network(kind), rows())
    assert not [s for s in sites if kind_of(s) == "experts"]
    assert why in next(f.reason for f in sites.frozen if f.layer == "blocks.0.router")


def test_experts_of_other_widths_stay_and_are_said() -> None:
    sites = obc.trace(MixtureNet(OldMixtral).double(), rows())
    router = next(f for f in sites.frozen if f.layer == "blocks.1.router")
    assert "the modules of 'blocks.1.experts' differ in gate.weight" in router.reason


@pytest.mark.parametrize("count, picked", [(4, 2), (8, 6), (12, 9), (3, 2)])
def test_any_number_of_them_of_which_fewer_are_picked(count: int, picked: int) -> None:
    torch.manual_seed(0)
    net = MixtureNet(OldMixtral, (12,) * count, depth=1, top_k=picked).double().eval()
    site = obc.trace(net, rows())["blocks.0.router"]
    assert (site.size, site.picked, site.attributes) == (count, picked, ("blocks.0.num_experts",))


@pytest.mark.parametrize("seed", range(4))
def test_blocks_do_not_pass_for_experts(seed: int) -> None:
    """Three blocks, three experts, one row: a block runs on as many rows as some expert does."""
    torch.manual_seed(seed)
    net = MixtureNet(OldMixtral, (12,) * 3, depth=3, top_k=1).double().eval()
    lists = [layer for site in obc.trace(net, rows(1, seed)) for layer, _ in site.modules]
    assert lists == [f"blocks.{n}.experts" for n in range(3)]


def switch(seed: int) -> Any:
    """Every second layer a mixture, five experts in a dictionary, of which one is picked."""
    transformers = import_transformers()
    config = transformers.SwitchTransformersConfig(
        **{"d_model": 24, "d_kv": 8, "d_ff": 36, "num_heads": 2, "vocab_size": 53},
        **{"num_layers": 2, "num_decoder_layers": 2, "num_experts": EXPERTS},
        **{"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
        decoder_start_token_id=0,
    )
    torch.manual_seed(seed)
    model = transformers.SwitchTransformersForConditionalGeneration(config).eval()
    with torch.no_grad():
        for p in model.parameters():  # its own are so small that nothing differs
            if p.ndim > 1:
                p.normal_(0, p.shape[-1] ** -0.5)
    return model


class Without(nn.Module):
    """A router to which some experts are never the best, written out."""

    def __init__(self, router: Any, gone: list[int]) -> None:
        super().__init__()
        self.router, self.gone, self.num_experts = router, gone, EXPERTS

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = x @ self.router.classifier.weight.T
        logits[..., self.gone] = -torch.inf
        odds, best = logits.softmax(-1).max(-1, keepdim=True)
        return nn.functional.one_hot(best[..., 0], EXPERTS), odds, logits


@pytest.mark.skipif(not vision.installed("transformers"), reason="transformers is not installed")
def test_the_experts_of_switch_transformers(tmp_path: Path) -> None:
    model = switch(0)
    sites = obc.trace(model, TEXTS)
    whole = [s for s in sites if kind_of(s) == "experts"]
    assert [(s.size, s.picked) for s in whole] == [(EXPERTS, 1)] * 2
    kept = {s.name: [0, 2, 4] for s in whole}
    small: Any = obc.apply(copy.deepcopy(model), obc.Plan.from_kept(sites, kept))
    with torch.no_grad():
        logits = small(**TEXTS).logits
        for gone, near in (([1, 3], True), ([1, 2], False)):
            other = copy.deepcopy(model)
            for layer in (other.encoder.block[1].layer[-1], other.decoder.block[1].layer[-1]):
                layer.mlp.router = Without(layer.mlp.router, gone)
            gap = float((other(**TEXTS).logits - logits).abs().max())
            assert (gap < 1e-5) is near
    assert [*small.encoder.block[1].layer[-1].mlp.experts] == [f"expert_{n}" for n in range(3)]
    obc.save(small, tmp_path / "even")
    twin = type(model).from_pretrained(tmp_path / "even")
    assert twin.config.num_experts == 3
    with torch.no_grad():
        torch.testing.assert_close(twin(**TEXTS).logits, logits)


@pytest.mark.slow
@pytest.mark.skipif(not vision.installed("transformers"), reason="transformers is not installed")
def test_layers_with_other_numbers_of_experts_load_elsewhere(tmp_path: Path) -> None:
    model = switch(0)
    sites = obc.trace(model, TEXTS)
    first, second = [s.name for s in sites if kind_of(s) == "experts"]
    plan = obc.Plan.from_kept(sites, {first: [0, 2, 4], second: [3, 4]})
    small: Any = obc.apply(copy.deepcopy(model), plan)
    obc.save(small, tmp_path / "uneven")
    auto = import_transformers().AutoModelForSeq2SeqLM
    twin = auto.from_pretrained(tmp_path / "uneven", trust_remote_code=True)
    fresh = obc.load(switch(1), tmp_path / "uneven")
    with torch.no_grad():
        logits = small(**TEXTS).logits
        torch.testing.assert_close(twin(**TEXTS).logits, logits)
        torch.testing.assert_close(fresh(**TEXTS).logits, logits)
