"""Every shared model is saved and loaded to the bit, and a loaded one goes on living."""

from __future__ import annotations

import copy
import json
import os
import pickle
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import obc
from obc.equivalent.attach import is_equivalent
from obc.files.artifact import Artifact
from obc.models import resnet20
from obc.plans.plan import PlanCost, PlanStep
from obc.surgery.record import applied
from tests.cases import CASES, Case, case
from tests.files.kept import contents, prune, pruned, same_outputs
from tests.parameters import parameters
from tests.reference import random_kept
from tests.untouched import untouched

NAMES = ("gpt2", "llama_gqa_eager", "qwen3", "hf_vit", "film", "weight_norm", "qkv_chunk_literal")
QUICK = [c for c in CASES if c.name in NAMES or ("hand" in c.tags and {"must", "tied"} & c.tags)]
REST = [c for c in CASES if c not in QUICK]


@pytest.mark.parametrize("case", parameters(*QUICK))
def test_small_models(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", parameters(*REST))
def test_the_rest(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", parameters(*CASES))
def test_every_model_in_single_precision(case: Case, tmp_path: Path) -> None:
    """As people keep them; the fresh model is what its class builds."""
    model = pruned(case).float()
    obc.save(model, tmp_path)
    assert contents(obc.load(case.build(), tmp_path)) == contents(model)


def check(case: Case, folder: Path) -> None:
    model, state = pruned(case), torch.get_rng_state()
    obc.save(model, folder)
    assert torch.equal(torch.get_rng_state(), state)
    assert {"model.safetensors", "plan.json"} <= set(os.listdir(folder))
    # Other numbers, in another type: everything must come from the file.
    loaded = obc.load(case.build(), folder)
    assert contents(loaded) == contents(model)
    assert type(loaded) is type(model)
    assert same_outputs(loaded, model, case.example())


def test_a_single_bit_would_show(tmp_path: Path) -> None:
    net = case("resnet20")
    model = pruned(net)
    obc.save(model, tmp_path)
    loaded = obc.load(net.build(), tmp_path)
    last = list(loaded.parameters())[-1]
    last.data.view(torch.uint8)[0] ^= 1
    assert contents(loaded) != contents(model)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))


X = torch.zeros(2, 4)


@pytest.mark.parametrize("name", ["resnet20", "mha", "tied_embedding", "bare_buffers"])
def test_pruned_twice(name: str, tmp_path: Path) -> None:
    net = case(name)
    model = prune(pruned(net), net.example(), seed=1)
    obc.save(model, tmp_path)
    loaded = obc.load(net.build(), tmp_path)
    assert contents(loaded) == contents(model) and len(contents(loaded)["plans"]) == 2
    assert same_outputs(loaded, model, net.example())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["mobilenet_v2", "vit", "tied_embedding"])
def test_types_are_those_of_the_file(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    net = case(name)
    model = pruned(net).to(dtype)
    obc.save(model, tmp_path)
    assert contents(obc.load(net.build(), tmp_path)) == contents(model)
    assert contents(obc.load(net.build().to(dtype), tmp_path)) == contents(model)


def test_mixed_types(tmp_path: Path) -> None:
    model = prune(mlp(), X)
    model[2].to(torch.bfloat16)
    obc.save(model, tmp_path)
    loaded = obc.load(mlp(), tmp_path)
    assert contents(loaded) == contents(model)
    assert [p.dtype for p in loaded[2].parameters()] == [torch.bfloat16] * 2


@pytest.mark.parametrize("name", ["resnet20", "mha", "tied_embedding", "vit", "gpt2"])
def test_a_model_without_values_gets_them_from_the_file(name: str, tmp_path: Path) -> None:
    net = case(name)
    model = pruned(net)
    obc.save(model, tmp_path)
    with torch.device("meta"):
        fresh = net.build()
    loaded = obc.load(fresh, tmp_path)
    assert contents(loaded) == contents(model)
    assert same_outputs(loaded, model, net.example())


class Odd(nn.Module):
    """Buffers of all kinds: outside the state, without elements, without dimensions, shared."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)
        self.register_buffer("scale", torch.ones(8), persistent=False)
        self.register_buffer("none", None)
        self.register_buffer("empty", torch.zeros(0, 3))
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("again", self.flags)
        self.register_buffer("wave", torch.zeros(3, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(torch.relu(self.first(x)) * self.scale)
        return y


def test_odd_buffers(tmp_path: Path) -> None:
    model = prune(Odd(), X)
    model.scale += torch.rand(model.scale.shape)
    model.steps += 7
    model.wave += 1j
    obc.save(model, tmp_path)
    loaded = obc.load(Odd(), tmp_path)
    assert contents(loaded) == contents(model)
    assert loaded.again is loaded.flags
    assert loaded.state_dict().keys() == model.state_dict().keys()


def test_a_model_that_was_never_pruned(tmp_path: Path) -> None:
    model = mlp()
    obc.save(model, tmp_path)
    assert contents(obc.load(mlp(), tmp_path)) == contents(model)


def test_what_a_model_was_it_stays(tmp_path: Path) -> None:
    """Mode, frozen parameters, hooks and the places of uncut parameters are the fresh model's."""
    net = case("resnet20")
    obc.save(pruned(net).float(), tmp_path)
    fresh = net.build()
    fresh.layer1.eval()
    fresh.fc.bias.requires_grad_(False)
    seen: list[Any] = []
    fresh.register_forward_hook(lambda *_: seen.append(1))
    bias, modes = fresh.fc.bias, [m.training for m in fresh.modules()]
    loaded = obc.load(fresh, tmp_path)
    assert loaded is fresh and loaded.fc.bias is bias and not bias.requires_grad
    assert [m.training for m in loaded.modules()] == modes
    seen.clear()
    loaded(net.example().float())
    assert seen == [1]


def test_a_saved_model_is_untouched(tmp_path: Path) -> None:
    model = pruned(case("resnet20"))
    with untouched(model):
        obc.save(model, tmp_path)


def test_others_may_read_it_as_they_may_any_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    obc.save(mlp(), tmp_path / "saved")
    modes = {p.stat().st_mode for p in (tmp_path / "file", *(tmp_path / "saved").iterdir())}
    assert len(modes) == 1


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = case("resnet20")
    model = pruned(net)
    obc.save(model, tmp_path)
    fresh = net.build()

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something was unpickled")

    for name in ("Unpickler", "load", "loads"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    assert contents(obc.load(fresh, tmp_path)) == contents(model)


# Equivalent pruning.

EQUIVALENT = ["resnet20", "mobilenet_v2", "qkv_chunk", "tied_embedding", "flatten_7x7"]
REST_EQUIVALENT = [c for c in CASES if c.name not in EQUIVALENT]


@pytest.mark.parametrize("case", parameters(*(case(n) for n in EQUIVALENT)))
def test_in_the_middle_of_equivalent_pruning(case: Case, tmp_path: Path) -> None:
    check_equivalent(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", parameters(*REST_EQUIVALENT))
def test_every_model_in_the_middle_of_equivalent_pruning(case: Case, tmp_path: Path) -> None:
    check_equivalent(case, tmp_path)


def check_equivalent(case: Case, folder: Path) -> None:
    """Tuned a little, saved, loaded; tuned on alike; merged, saved and loaded again."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "sliced, without C and D")
        model, example = case.model(), case.example()
        sites = obc.trace(model, example)
        plan = obc.Plan.from_kept(sites, random_kept(sites))
        obc.apply(model, plan, example=example, equivalent=True)
        nudge(model)
        obc.save(model, folder)
        loaded = obc.load(case.build(), folder)
    assert contents(loaded) == contents(model)
    assert same_outputs(loaded, model, example)
    if not is_equivalent(model):  # nothing in it could have factors
        return
    for each in (model, loaded):
        nudge(each)
        obc.merge(each)
    assert contents(loaded) == contents(model)
    obc.save(loaded, folder)
    assert contents(obc.load(case.build(), folder)) == contents(model)


def nudge(model: nn.Module) -> None:
    """Every parameter moves a little, each number in its own way, the same each time."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in model.parameters():
            if p.is_floating_point():
                p.add_(torch.randn(p.shape, generator=generator).to(p), alpha=1e-3)


def test_tuned_on_after_loading(tmp_path: Path) -> None:
    net = case("resnet20")
    model, example = net.model(), net.example()
    sites = obc.trace(model, example)
    plan = obc.Plan.from_kept(sites, random_kept(sites))
    obc.apply(model, plan, example=example, equivalent=True)
    obc.save(model, tmp_path)
    loaded = obc.load(net.build(), tmp_path)
    assert contents(loaded) == contents(model)
    for each in (model, loaded):
        each.train()
        optimizer = torch.optim.SGD(obc.parameter_groups(each, 0.1), momentum=0.9)
        for _ in range(2):
            each(example).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        obc.merge(each)
    assert contents(loaded) == contents(model)


def test_factors_as_layers_are_refused(tmp_path: Path) -> None:
    """The first version also wrote C and D as layers of their own."""
    model = mlp()
    sites = obc.trace(model, X)
    plan = obc.Plan.from_kept(sites, random_kept(sites))
    obc.save(obc.apply(model, plan, equivalent=True), tmp_path)
    text = (tmp_path / "plan.json").read_text()
    with mock.patch.object(Artifact, "text", lambda _: text.replace('"folded"', '"inserted"')):
        obc.save(model, tmp_path)
    fresh = mlp()
    with untouched(fresh), pytest.raises(obc.ObcError, match="as layers of their own"):
        obc.load(fresh, tmp_path)


def test_a_failed_load_takes_its_factors_back(tmp_path: Path, monkeypatch: Any) -> None:
    model = mlp()
    sites = obc.trace(model, X)
    plan = obc.Plan.from_kept(sites, random_kept(sites))
    obc.save(obc.apply(model, plan, equivalent=True), tmp_path)

    def fail(*_: Any) -> None:
        raise obc.ObcError("no")

    monkeypatch.setattr("obc.files.loading.check_model", fail)
    fresh = mlp()
    with untouched(fresh), pytest.raises(obc.ObcError, match=r"^no$"):
        obc.load(fresh, tmp_path)


# By name.


def test_references_are_resolved_and_kept(tmp_path: Path) -> None:
    model = prune(resnet20(), torch.zeros(1, 3, 16, 16))
    obc.save(model, tmp_path, reference="resnet20")
    loaded = obc.load("resnet20", tmp_path)
    assert contents(loaded) == contents(model)
    obc.save(loaded, tmp_path / "again")
    for folder in (tmp_path, tmp_path / "again"):
        assert json.loads((folder / "plan.json").read_text())["model"] == "resnet20"
    with pytest.raises(obc.ObcError, match=r"no model named 'resnet21'; did you mean 'resnet20'"):
        obc.load("resnet21", tmp_path)


def test_a_history_without_end_is_left_out(tmp_path: Path, monkeypatch: Any) -> None:
    model = mlp()
    plan = obc.Plan.from_kept(obc.trace(model, X), {"0": [1, 2]})
    cost = PlanCost(macs=1, params=1, channels=1)
    step = PlanStep(removed={"0": [0]}, scores={"0": [0.1]}, after=cost)
    obc.apply(model, plan.model_copy(update={"history": [step] * 1000}))
    monkeypatch.setattr("obc.files.saving.LIMIT", 30_000)
    with pytest.warns(UserWarning, match="history is too long"):
        obc.save(model, tmp_path)
    assert applied(obc.load(mlp(), tmp_path)) == (plan,)


def test_history_and_costs_are_kept(tmp_path: Path) -> None:
    model, x = mlp(), torch.randn(8, 4)

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        found: Tensor = model(batch).square().mean()
        return found

    plan = obc.plan(model, X, [x, x + 1], loss, target="macs=2x")
    obc.save(obc.apply(model, plan), tmp_path)
    content = json.loads((tmp_path / "plan.json").read_text())["plans"][0]
    assert content["history"] and content["before"]["macs"] > content["after"]["macs"]
    assert applied(obc.load(mlp(), tmp_path)) == (plan,)


# A loaded model goes on living.


def test_a_loaded_model_is_tuned_and_pruned_again_like_the_saved_one(tmp_path: Path) -> None:
    net = case("resnet20")
    model = pruned(net)
    obc.save(model, tmp_path / "once")
    loaded = obc.load(net.build(), tmp_path / "once")
    for each in (model, loaded):
        each.train()
        optimizer = torch.optim.SGD(each.parameters(), 0.1, momentum=0.9)
        for _ in range(3):
            each(net.example()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert contents(loaded) == contents(model)
    for each in (model, loaded):
        prune(each, net.example(), seed=1)
    obc.save(loaded, tmp_path / "twice")
    assert contents(obc.load(net.build(), tmp_path / "twice")) == contents(model)


def test_saving_over_an_older_artifact(tmp_path: Path) -> None:
    model = prune(mlp(), X)
    obc.save(model, tmp_path)
    model[0].weight.data += 1
    obc.save(model, str(tmp_path))
    assert contents(obc.load(mlp(), tmp_path)) == contents(model)
    again = copy.deepcopy(model)
    obc.save(again, tmp_path / "new" / "folder")
    assert contents(obc.load(mlp(), tmp_path / "new" / "folder")) == contents(model)


# What cannot be saved.


class Extra(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"a": 1}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda m: m.to("meta"), "'0.weight' is on the meta device"),
        (lambda m: m.append(nn.Linear(2, 2)), "'5.bias' came after the last plan"),
        (lambda m: m.pop(4), "'4.bias' went after the last plan"),
        (lambda m: m.__setitem__(4, nn.Linear(6, 3)), r"'4.weight' is \[3, 6\] and was \[2, 6\]"),
        (lambda m: m.__setitem__(1, Extra(8, 8)), r"'1' \(Extra\) keeps extra state"),
        (lambda m: m.to(torch.complex128), "'0.weight' is torch.complex128"),
        (
            lambda m: setattr(m[0], "weight", nn.Parameter(m[0].weight.detach().to_sparse())),
            "'0.weight' is no plain tensor",
        ),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(change: Any, text: str, tmp_path: Path) -> None:
    model = prune(mlp(), X)
    change(model)
    with pytest.raises(obc.ObcError, match=text):
        obc.save(model, tmp_path / "folder")
    assert not os.listdir(tmp_path)


def test_a_wrapper_is_not_saved_in_the_place_of_what_it_wraps(tmp_path: Path) -> None:
    model = prune(mlp(), X)
    for wrapper, message in [
        (nn.DataParallel(model), "wrapped in DataParallel; give what is inside: model.module"),
        (nn.Sequential(model), "not this model but '0' inside it was pruned"),
        (torch.compile(model), "not this model but '_orig_mod' inside it was pruned"),
    ]:
        with pytest.raises(obc.ObcError, match=message):
            obc.save(wrapper, tmp_path / "folder")
    with pytest.raises(obc.ObcError, match="the model is lazy and has no weights yet"):
        obc.save(nn.LazyLinear(3), tmp_path / "folder")
    unsized = nn.Linear(2, 3)
    unsized.weight = nn.UninitializedParameter()
    with pytest.raises(obc.ObcError, match="'weight' has no shape yet"):
        obc.save(unsized, tmp_path / "folder")
    assert not os.listdir(tmp_path)


def test_another_library_s_model_is_not_overwritten(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(2)}, tmp_path / "model.safetensors")
    before = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(obc.ObcError, match=r"was not written by obc\.save; choose another"):
        obc.save(mlp(), tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    (tmp_path / "file").write_text("")
    with pytest.raises(obc.ObcError, match="is no folder"):
        obc.save(mlp(), tmp_path / "file")


# What does not fit.


@pytest.mark.parametrize(
    ("fresh", "text"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 9)), "the plan is for another model"),
        (lambda: prune(mlp(), X), "was pruned before; load wants a fresh one"),
        (lambda: "resnet20", "the plan is for another model"),
    ],
)
def test_other_models_are_refused_and_left_alone(fresh: Any, text: str, tmp_path: Path) -> None:
    obc.save(prune(mlp(), X), tmp_path)
    model = fresh()
    watched = [model] if isinstance(model, nn.Module) else []
    with untouched(*watched), pytest.raises(obc.ObcError, match=text):
        obc.load(model, tmp_path)


def test_ties_must_be_the_same(tmp_path: Path) -> None:
    net = case("tied_linears")
    obc.save(pruned(net), tmp_path)
    loose = net.build()
    names = [n for n, _ in loose.named_parameters(remove_duplicate=False)]
    tied = next(n for n in names if n not in dict(loose.named_parameters()))
    owner = loose.get_submodule(tied.rpartition(".")[0])
    owner.weight = nn.Parameter(owner.weight.detach().clone())
    with untouched(loose), pytest.raises(obc.ObcError, match="for another model"):
        obc.load(loose, tmp_path)


def test_a_failure_at_the_very_end_leaves_the_model_alone(tmp_path: Path, monkeypatch: Any) -> None:
    net = case("resnet20")
    obc.save(pruned(net), tmp_path)

    def fail(*_: Any) -> None:
        raise obc.ObcError("no")

    monkeypatch.setattr("obc.files.loading.check_model", fail)
    fresh = net.build()
    with untouched(fresh), pytest.raises(obc.ObcError, match=r"^no$"):
        obc.load(fresh, tmp_path)


def test_the_same_model_gives_the_same_file(tmp_path: Path) -> None:
    """A dozen times: safetensors by itself would turn its two notes around in every second one."""
    model, found = prune(mlp(), X), set()
    for _ in range(12):
        obc.save(model, tmp_path)
        found.add((tmp_path / "model.safetensors").read_bytes())
    assert len(found) == 1
