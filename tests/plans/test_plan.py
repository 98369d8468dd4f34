"""Plans: what they refuse, what they remember, and that they are replayed to the bit."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import obc
from tests.cases import case
from tests.reference import random_kept
from tests.untouched import untouched


def mlp(width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))


@pytest.fixture
def sites() -> obc.Sites:
    return obc.trace(mlp(), torch.zeros(3, 4))


@pytest.fixture
def plan(sites: obc.Sites) -> obc.Plan:
    return obc.Plan.from_kept(sites, {"0": [5, 0, 2]})


# What is kept.


@pytest.mark.parametrize(
    "indices", [[5, 0, 2], (0, 2, 5), {5, 2, 0}, torch.tensor([2, 0, 5]), range(0, 6, 2)]
)
def test_indices_in_any_order_and_kind(sites: obc.Sites, indices: Any) -> None:
    assert obc.Plan.from_kept(sites, {"0": indices}).kept == {"0": sorted(int(i) for i in indices)}


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        ([8], "site '0': channel 8 is out of range; there are 8"),
        ([-1, 2], "site '0': channel -1 is out of range; there are 8"),
        ([1, 3, 1], "site '0': channel 1 is kept twice"),
        ([], "site '0': nothing would be kept"),
        (torch.tensor([], dtype=torch.long), "site '0': nothing would be kept"),
        ([0.5, 2], "site '0': .*0.5"),
        ([True, False], "site '0': "),
        (torch.tensor([True, False] * 4), "site '0': "),
        ("12", "site '0': "),
        (3, "site '0': "),
        (None, "site '0': "),
        ([None], "site '0': "),
        (torch.tensor([[0, 1]]), "site '0': "),
    ],
    ids=repr,
)
def test_bad_indices(sites: obc.Sites, indices: Any, text: str) -> None:
    with pytest.raises(obc.ObcError, match=text):
        obc.Plan.from_kept(sites, {"0": indices})


def test_an_unknown_site() -> None:
    net = case("resnet20")
    sites = obc.trace(net.build(), net.example().float())
    with pytest.raises(
        obc.ObcError,
        match=r"^no site named 'layer9.0.conv1'; did you mean 'layer\d.0.conv1'\?(\n|$)",
    ):
        obc.Plan.from_kept(sites, {"layer9.0.conv1": [0]})


def test_sites_that_are_not_named_keep_everything(sites: obc.Sites) -> None:
    model = mlp()
    with untouched(model):
        obc.apply(model, obc.Plan.from_kept(sites, {}))


def test_a_plan_cannot_be_changed(plan: obc.Plan) -> None:
    plan.kept["0"].append(7)
    assert plan.kept == {"0": [0, 2, 5]}
    with pytest.raises(ValueError, match="frozen"):
        plan.sites = {}  # type: ignore[misc]


# Files.


def test_saved_and_loaded(plan: obc.Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    assert obc.Plan.load(tmp_path / "plan.json") == plan
    assert obc.Plan.load(str(tmp_path / "plan.json")) == plan
    assert os.listdir(tmp_path) == ["plan.json"]


def test_a_file_says_what_it_is(plan: obc.Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    content = json.loads((tmp_path / "plan.json").read_text())
    assert content["format"] == "obc.plan" and content["version"] == 1
    assert content["sites"]["0"]["size"] == 8 and content["sites"]["0"]["kept"] == [0, 2, 5]
    assert content["shapes"]["2.weight"] == [2, 8]


def change(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Set an entry by its dotted path, or remove it."""

    def edit(content: dict[str, Any]) -> None:
        *path, last = key.split(".")
        for part in path:
            content = content[part]
        if value is None:
            del content[last]
        else:
            content[last] = value

    return edit


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("version", 2, "version: Input should be 1"),
        ("version", "1", "version"),
        ("format", "obc.model", "format"),
        ("colour", "red", "colour: Extra inputs"),
        ("sites.0.colour", "red", "sites.0.colour: Extra inputs"),
        ("sites", None, "sites: Field required"),
        ("shapes", None, "shapes: Field required"),
        ("sites.0.kept", [], "sites.0.kept"),
        ("sites.0.kept", [2, 0], "in order"),
        ("sites.0.kept", [0, 0], "kept twice"),
        ("sites.0.kept", [0, 8], "out of range"),
        ("sites.0.kept", [-1], "out of range"),
        ("sites.0.kept", ["0"], "sites.0.kept.0"),
        ("sites.0.kept", [0.0], "sites.0.kept.0"),
        ("sites.0.size", 0, "sites.0.size"),
        ("example", {}, "example"),
        ("example", {"tensor": [3, "4"], "dtype": "float32"}, "example"),
        ("example", {"tensor": [3, -4], "dtype": "float32"}, "example"),
        ("example", {"tensor": [3, 4], "dtype": "load"}, "example"),
        ("example", {"tensor": [3, 4], "dtype": "int64", "values": [1]}, "example"),
        ("example", {"pickle": "gASV"}, "example"),
    ],
)
def test_damaged_files_are_refused(
    plan: obc.Plan, tmp_path: Path, key: str, value: Any, text: str
) -> None:
    plan.save(tmp_path / "plan.json")
    content = json.loads((tmp_path / "plan.json").read_text())
    change(key, value)(content)
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(
        obc.ObcError, match=rf"plan.json is not a plan this version reads: .*{text}"
    ):
        obc.Plan.load(tmp_path / "plan.json")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\x00", b'{"version": 1}'])
def test_files_that_are_no_plans(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(obc.ObcError, match="is not a plan this version reads"):
        obc.Plan.load(tmp_path / "plan.json")


def test_files_that_are_not_there(plan: obc.Plan, tmp_path: Path) -> None:
    with pytest.raises(obc.ObcError, match=r"no plan at .*nowhere\.json"):
        obc.Plan.load(tmp_path / "nowhere.json")
    with pytest.raises(obc.ObcError, match=str(tmp_path)):
        obc.Plan.load(tmp_path)


def test_numbers_that_json_cannot_say_are_not_written(plan: obc.Plan, tmp_path: Path) -> None:
    odd = plan.model_copy(update={"settings": {"step": float("inf")}})
    with pytest.raises(obc.ObcError, match="not finite"):
        odd.save(tmp_path / "plan.json")
    assert os.listdir(tmp_path) == []


def test_what_would_be_too_long_to_read_is_not_written(
    plan: obc.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("obc.plans.plan.LIMIT", 100)
    with pytest.raises(obc.ObcError, match=r"more than Plan\.load reads"):
        plan.save(tmp_path / "plan.json")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_failed_save_leaves_what_was_there(
    plan: obc.Plan, sites: obc.Sites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    obc.Plan.from_kept(sites, {"0": [1]}).save(tmp_path / "plan.json")
    before = (tmp_path / "plan.json").read_bytes()

    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, name, full)
    with pytest.raises(obc.ObcError, match="cannot be written: no space left"):
        plan.save(tmp_path / "plan.json")
    assert os.listdir(tmp_path) == ["plan.json"]
    assert (tmp_path / "plan.json").read_bytes() == before


# Replay.


@pytest.mark.parametrize("name", ["resnet20", "qkv_chunk", "tied_embedding", "keyword_input"])
def test_replayed_from_a_file_on_a_fresh_copy(name: str, tmp_path: Path) -> None:
    net = case(name)
    model = net.model()
    fresh = copy.deepcopy(model)
    sites = obc.trace(model, net.example())
    plan = obc.Plan.from_kept(sites, random_kept(sites))
    plan.save(tmp_path / "plan.json")
    obc.apply(model, plan, example=net.example())
    obc.apply(fresh, obc.Plan.load(tmp_path / "plan.json"))
    first, second = model.state_dict(), fresh.state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


class Deeper(nn.Sequential):
    """The same layers and one more."""


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (mlp(9), r"'0.weight' is \[9, 4\] here, \[8, 4\] in the plan"),
        (Deeper(*mlp(), nn.Linear(2, 2)), "it knows no '3.weight'"),
        (nn.Sequential(nn.Linear(4, 8), nn.ReLU()), "no '2.weight' here; did you mean '0.weight'"),
    ],
    ids=["wider", "deeper", "shallower"],
)
def test_a_plan_for_another_model_names_the_first_difference(
    plan: obc.Plan, model: nn.Module, text: str
) -> None:
    with untouched(model), pytest.raises(obc.ObcError, match=f"for another model: .*{text}"):
        obc.apply(model, plan)


def test_a_plan_is_applied_once(plan: obc.Plan) -> None:
    model = obc.apply(mlp(), plan)
    with untouched(model), pytest.raises(obc.ObcError, match="for another model"):
        obc.apply(model, plan)


def test_a_plan_whose_sites_are_not_here(plan: obc.Plan) -> None:
    """Same shapes, other wiring: nothing stands between the two layers' channels."""
    other = nn.Sequential(nn.Linear(4, 8), nn.Softmax(-1), nn.Linear(8, 2))
    other[1].forward = lambda x: x.cumsum(-1)  # type: ignore[method-assign]
    with untouched(other), pytest.raises(obc.ObcError, match="no site named '0'"):
        obc.apply(other, plan)


def test_a_plan_without_an_example_asks_for_one(plan: obc.Plan) -> None:
    bare = plan.model_copy(update={"example": None})
    with pytest.raises(obc.ObcError, match="keeps no example; pass one"):
        obc.apply(mlp(), bare)
    assert obc.apply(mlp(), bare, example=torch.zeros(1, 4))[0].out_features == 3
