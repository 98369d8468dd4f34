"""`obc.apply`: what the model was, it stays; if anything fails, it is as it was."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import obc
from obc.surgery import slicing
from obc.tracing import layers
from tests.cases import Case, case, cases
from tests.examples import floats
from tests.hugging import decoder
from tests.nets.wiring import Fickle
from tests.nets.wrap import Wrap
from tests.parameters import parameters
from tests.reference import cut, random_kept
from tests.untouched import untouched

PIXELS = floats(2, 3, 8, 8).float()


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.Conv2d(6, 4, 1)
    )


def plan_for(model: nn.Module, example: Any, **kept: list[int]) -> obc.Plan:
    sites = obc.trace(model, example)
    return obc.Plan.from_kept(sites, {n.replace("_", "."): k for n, k in kept.items()})


def kept_of(model: nn.Module) -> obc.Plan:
    """Both sites of the little network, cut in half."""
    sites = obc.trace(model, PIXELS)
    return obc.Plan.from_kept(sites, {"0": [0, 3, 4, 7], "3": [1, 2, 5]})


# What is left.


@pytest.mark.parametrize("case", parameters(*cases("hand", "must")))
def test_every_tensor_is_a_slice_of_the_old_one(case: Case) -> None:
    model, example = case.model(), case.example()
    old = copy.deepcopy(dict((*model.named_parameters(), *model.named_buffers())))
    sites = obc.trace(model, example)
    kept = random_kept(sites)
    obc.apply(model, obc.Plan.from_kept(sites, kept), example=example)
    new = dict((*model.named_parameters(), *model.named_buffers()))
    assert new.keys() == old.keys()
    for name in old:
        assert torch.equal(new[name], cut(old[name], name, sites, kept)), name


def test_layers_know_their_new_sizes() -> None:
    model = obc.apply(cnn(), kept_of(cnn()))
    assert (model[0].in_channels, model[0].out_channels) == (3, 4)
    assert model[1].num_features == 4 and len(model[1].running_mean) == 4
    assert (model[3].in_channels, model[3].out_channels) == (4, 3)
    assert model[4].in_channels == 3


@pytest.mark.parametrize(
    ("name", "site", "path", "expected"),
    [
        ("groups_two", "grouped1.0", "grouped1.0", {"groups": 2, "out_channels": 4}),
        ("resnext", "blocks.0.conv1", "blocks.0.conv2", {"groups": 2, "in_channels": 6}),
        ("mobilenet_v2", "features.3.layers.0.0", "features.3.layers.1.0", {"groups": 2}),
        ("transposed_groups", "stem.0", "up", {"in_channels": 6, "out_channels": 15, "groups": 3}),
        ("group_norm", "conv1", "norm1", {"num_channels": 6, "num_groups": 3}),
        ("group_norm_each", "conv1", "norm1", {"num_channels": 2, "num_groups": 2}),
        ("layer_norm", "stem", "norm1", {"normalized_shape": (2,)}),
        ("instance_norm", "conv1", "norm1", {"num_features": 2}),
        ("prelu", "conv1", "act1", {"num_parameters": 2}),
        ("tied_embedding", "embedding", "embedding", {"embedding_dim": 2, "num_embeddings": 23}),
        ("mha", "attention", "attention", {"num_heads": 2, "head_dim": 3, "embed_dim": 12}),
        ("mha", "stem", "attention", {"num_heads": 4, "embed_dim": 2, "kdim": 2}),
        ("gpt2", "transformer.h.0.mlp.c_fc", "transformer.h.0.mlp.c_fc", {"nf": 2}),
    ],
)
def test_attributes_follow(name: str, site: str, path: str, expected: dict[str, Any]) -> None:
    net = case(name)
    if "hf" in net.tags:
        pytest.importorskip("transformers")
    model, example = net.model(), net.example()
    sites = obc.trace(model, example)
    obc.apply(model, obc.Plan.from_kept(sites, {site: [0, 1]}), example=example)
    layer = model.get_submodule(path)
    assert {key: getattr(layer, key) for key in expected} == expected


def test_hugging_face_attention_knows_its_heads() -> None:
    pytest.importorskip("transformers")
    model = decoder("Llama", num_attention_heads=6, num_key_value_heads=2, head_dim=4)
    other = copy.deepcopy(model)
    example = {"input_ids": torch.arange(5)[None], "use_cache": False}
    sites = obc.trace(model, example)
    heads = next(s for s in sites if s.heads)
    assert heads.size == 2
    obc.apply(model, obc.Plan.from_kept(sites, {heads.name: [1]}))
    attention = model.model.layers[0].self_attn
    assert attention.q_proj.out_features == 12 and attention.k_proj.out_features == 4
    assert model.model.layers[1].self_attn.q_proj.out_features == 24
    assert other.config.num_attention_heads == 6, "a copy's configuration is its own"
    assert model(**example).logits.shape == (1, 5, 53)


# What it was, it stays.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_class_type_mode_and_gradients_stay(dtype: torch.dtype) -> None:
    model = cnn().to(dtype).train()
    model[1].eval()
    model[3].requires_grad_(False)
    modules, kinds = list(model.modules()), [type(m) for m in model.modules()]
    plan = plan_for(model, PIXELS.to(dtype), **{"0": [0, 3], "3": [1, 2]})
    assert obc.apply(model, plan) is model
    assert list(model.modules()) == modules and [type(m) for m in model.modules()] == kinds
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert model.training and not model[1].training and model[0].training
    assert not model[3].weight.requires_grad and model[4].weight.requires_grad
    assert all(isinstance(p, nn.Parameter) and p.is_leaf for p in model.parameters())


def test_the_random_state_stays() -> None:
    model, plan = cnn(), kept_of(cnn())
    state = torch.get_rng_state()
    obc.apply(model, plan)
    assert torch.equal(torch.get_rng_state(), state)


def test_gradients_are_cut_along() -> None:
    model = cnn()
    model(PIXELS).square().sum().backward()
    old = {n: p.grad.clone() for n, p in model.named_parameters()}
    sites, plan = obc.trace(model, PIXELS), kept_of(model)
    obc.apply(model, plan)
    for name, p in model.named_parameters():
        assert torch.equal(p.grad, cut(old[name], name, sites, plan.kept))


def test_hooks_survive() -> None:
    model, seen = cnn(), []
    model[0].register_forward_hook(lambda *_: seen.append("forward"))
    model[0].register_forward_pre_hook(lambda *_: seen.append("before"))
    model[3].register_full_backward_hook(lambda *_: seen.append("backward"))
    model[0].weight.register_hook(lambda g: seen.append(f"gradient {len(g)}"))
    model[3].weight.register_post_accumulate_grad_hook(lambda p: seen.append(f"step {len(p)}"))
    obc.apply(model, kept_of(cnn()))
    seen.clear()
    model(PIXELS).sum().backward()
    assert sorted(seen) == ["backward", "before", "forward", "gradient 4", "step 3"]


def test_hooks_of_parameters_that_no_longer_learn_do_not_hinder() -> None:
    model, seen = cnn(), []
    model[0].weight.register_hook(seen.append)
    model.requires_grad_(False)
    obc.apply(model, kept_of(cnn()))
    model.requires_grad_(True)
    model(PIXELS).sum().backward()
    assert len(seen) == 1 and not model[0].bias.grad.isnan().any()


def test_what_users_hang_on_parameters_stays() -> None:
    model = cnn()
    model[0].weight.tag = "stem"
    obc.apply(model, kept_of(cnn()))
    assert model[0].weight.tag == "stem"


@pytest.mark.parametrize("name", ["tied_embedding", "gpt2"])
def test_tied_weights_stay_tied(name: str) -> None:
    net = case(name)
    if "hf" in net.tags:
        pytest.importorskip("transformers")
    model, example = net.model(), net.example()
    sites = obc.trace(model, example)
    obc.apply(model, obc.Plan.from_kept(sites, random_kept(sites)), example=example)
    if name == "gpt2":
        assert model.lm_head.weight is model.transformer.wte.weight
    else:
        assert model.head.weight is model.embedding.weight


def test_a_module_that_stands_twice_is_one_module() -> None:
    shared = nn.Conv2d(6, 6, 1)
    model = nn.Sequential(nn.Conv2d(3, 6, 1), shared, nn.ReLU(), shared, nn.Conv2d(6, 2, 1))
    obc.apply(model, plan_for(model, PIXELS, **{"0": [0, 1, 5]}))
    assert model[1] is model[3] and model[1].weight.shape == (3, 3, 1, 1)


def test_a_pruned_model_is_traced_and_pruned_again() -> None:
    model = obc.apply(cnn(), kept_of(cnn()))
    obc.apply(model, plan_for(model, PIXELS, **{"0": [0, 2]}))
    assert model[0].out_channels == 2 and model(PIXELS).shape == (2, 4, 4, 4)


@pytest.mark.parametrize("name", ["mha", "encoder", "c2f"])
def test_a_pruned_model_is_copied_saved_and_trained(name: str) -> None:
    net = case(name)
    model, example = net.model(), net.example()
    sites = obc.trace(model, example)
    obc.apply(model, obc.Plan.from_kept(sites, random_kept(sites)), example=example)
    twin = copy.deepcopy(model)
    assert twin.load_state_dict(model.state_dict()).missing_keys == []
    first = [next(twin.parameters()).detach().clone(), next(model.parameters()).detach().clone()]
    twin.train()
    out = twin(example)
    (out if isinstance(out, Tensor) else sum(t.sum() for t in out.values())).sum().backward()
    torch.optim.SGD(twin.parameters(), lr=0.1).step()
    assert not torch.equal(next(twin.parameters()), first[0])
    assert torch.equal(next(model.parameters()), first[1])


def test_users_tell_about_their_own_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scale(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.width, self.weight = width, nn.Parameter(torch.rand(width))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight.view(1, self.width, 1, 1)

    def model() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 6, 1), Scale(6), nn.Conv2d(6, 2, 1))

    monkeypatch.setattr(layers, "_HANDLERS", dict(layers._HANDLERS))

    @obc.handler(Scale)
    def scale(module: Scale, kept: layers.Kept) -> None:
        module.width = len(kept["weight", 0])

    pruned = obc.apply(model(), plan_for(model(), PIXELS, **{"0": [0, 1]}))
    assert pruned[1].width == 2


# What fails leaves the model as it was.


def test_a_model_that_changes_its_graph() -> None:
    sites = obc.trace(nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 5)), torch.zeros(2, 6))
    model = Fickle()
    plan = obc.Plan.from_kept(sites, {"0": [0]}).model_copy(
        update={"shapes": {n: list(p.shape) for n, p in model.named_parameters()}}
    )
    with untouched(model), pytest.raises(obc.ObcError, match="changes its graph"):
        obc.apply(model, plan)


def test_an_example_that_the_model_rejects() -> None:
    model, plan = cnn(), kept_of(cnn())
    with untouched(model), pytest.raises(obc.ObcError, match="the model rejects the example"):
        obc.apply(model, plan, example=torch.zeros(1, 4, 8, 8))


def test_a_model_that_changes_its_input_is_pruned() -> None:
    model = Wrap(lambda m, x: m.inner(x.sub_(0.5)), inner=cnn())
    example = PIXELS.clone()
    obc.apply(model, plan_for(model, example, inner_0=[0, 3]), example=example)
    assert model.inner[0].out_channels == 2 and torch.equal(example, PIXELS)


def failing(*_: Any) -> None:
    raise RuntimeError("out of luck")


def test_a_handler_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    model, plan = cnn(), kept_of(cnn())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    held = list(optimizer.param_groups[0]["params"])
    tracing = slicing.Tracing(model, PIXELS)
    monkeypatch.setattr(slicing, "Tracing", lambda *_, **__: tracing)
    monkeypatch.setitem(layers._HANDLERS, nn.modules.batchnorm._NormBase, failing)
    with (
        untouched(model),
        pytest.raises(obc.ObcError, match=r"out of luck.*cause is in 0;.*as it was"),
    ):
        obc.apply(model, plan, optimizer=optimizer)
    assert all(a is b for a, b in zip(optimizer.param_groups[0]["params"], held, strict=True))


@pytest.mark.parametrize("corrupt", ["rolled", "scaled", "nan", "too short"])
def test_a_wrong_cut_is_noticed_and_undone(monkeypatch: pytest.MonkeyPatch, corrupt: str) -> None:
    right = slicing.sliced

    def wrong(tensor: Tensor, kept: dict[int, Tensor]) -> Tensor:
        if 1 not in kept:  # only what reads is cut wrongly
            return right(tensor, kept)
        if corrupt == "too short":
            return right(tensor, {dim: index[1:] for dim, index in kept.items()})
        part = right(tensor, kept)
        ways = {"rolled": part.roll(1, 1), "scaled": part * 1.01, "nan": part * float("nan")}
        return nn.Parameter(ways[corrupt].detach())

    model, plan = cnn(), kept_of(cnn())
    monkeypatch.setattr(slicing, "sliced", wrong)
    text = "expected input" if corrupt == "too short" else "differs from the masked original"
    with untouched(model), pytest.raises(obc.ObcError, match=rf"{text}.*; the model is as it was"):
        obc.apply(model, plan)


def test_the_site_at_fault_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    right = slicing.sliced

    def wrong(tensor: Tensor, kept: dict[int, Tensor]) -> Tensor:
        part = right(tensor, kept)
        return (
            nn.Parameter(part.detach().flip(1)) if part.shape[1:2] == (3,) and 1 in kept else part
        )

    model, plan = cnn(), kept_of(cnn())
    monkeypatch.setattr(slicing, "sliced", wrong)
    with untouched(model), pytest.raises(obc.ObcError, match="the cause is in 3;"):
        obc.apply(model, plan)
