"""Hugging Face models with one width over layers load by plain `from_pretrained`, others say so."""

from __future__ import annotations

import copy
import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import obc
from tests import vision
from tests.cases import case
from tests.files.kept import contents
from tests.hugging import decoder, import_transformers, tokenizer
from tests.reference import random_kept
from tests.sensitive import run, tensors
from tests.sweep import SWEEP
from tests.sweep.judge import prepare

pytestmark = pytest.mark.skipif(
    not vision.installed("transformers"), reason="transformers is not installed"
)
WITH = ["config.json", "generation_config.json", "model.safetensors", "plan.json"]
DECODERS = {
    "hidden_size": 12,
    "intermediate_size": 30,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def cut(name: str, **sizes: int) -> nn.Module:
    """A case whose sites keep the first channels: as many of a size as `sizes` says, or half."""
    net = case(name)
    model, example = net.model().float(), floated(net.example())
    sites = obc.trace(model, example)
    kept = {s.name: range(sizes.get(f"of_{s.size}", max(1, s.size // 2))) for s in sites}
    return obc.apply(model, obc.Plan.from_kept(sites, kept))


def floated(example: Any) -> Any:
    return {
        k: v.float() if torch.is_tensor(v) and v.is_floating_point() else v
        for k, v in example.items()
    }


def saved_without_a_word(model: nn.Module, folder: Path) -> None:
    import_transformers()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        obc.save(model, folder)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("llama_gqa_eager", DECODERS),
        ("qwen3", DECODERS),
        pytest.param("phi3", DECODERS, marks=pytest.mark.slow),
        pytest.param("mistral", DECODERS, marks=pytest.mark.slow),
        pytest.param("t5_gated", {"d_ff": 30, "num_heads": 1}, marks=pytest.mark.slow),
    ],
)
def test_loaded_by_plain_from_pretrained(
    name: str, changed: dict[str, int], tmp_path: Path
) -> None:
    model = cut(name, of_37=30, of_35=30)
    saved_without_a_word(model, tmp_path)
    assert sorted(os.listdir(tmp_path)) == WITH
    config = json.loads((tmp_path / "config.json").read_text())
    assert {k: config[k] for k in changed} == changed
    twin = type(model).from_pretrained(tmp_path)
    same_outputs(model, twin, floated(case(name).example()))
    assert contents(obc.load(case(name).build(), tmp_path)) == contents(model)


def test_in_bf16(tmp_path: Path) -> None:
    model = cut("qwen2").to(torch.bfloat16)
    saved_without_a_word(model, tmp_path)
    twin = type(model).from_pretrained(tmp_path)
    assert {p.dtype for p in twin.parameters()} == {torch.bfloat16}
    auto = import_transformers().AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(auto) is type(model)


def auto(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder with a modelling file, loaded as anybody would, without a report of odd keys."""
    hf = import_transformers()
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(folder / "code"))
    kind = next(iter(json.loads((folder / "config.json").read_text())["auto_map"]))
    twin = getattr(hf, kind).from_pretrained(folder, trust_remote_code=True)
    assert type(twin).__name__.startswith("Pruned")
    return twin


@pytest.mark.parametrize("name", ["bert", "gpt2", "hf_convnext"])
def test_widths_that_no_configuration_can_say(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = cut(name)
    saved_without_a_word(model, tmp_path)
    assert contents(obc.load(case(name).build(), tmp_path)) == contents(model)
    twin = auto(tmp_path, monkeypatch)
    same_outputs(model, twin, floated(case(name).example()))
    same_tensors(model, twin)


def same_outputs(model: nn.Module, twin: nn.Module, example: Any) -> None:
    with torch.no_grad():
        ours, theirs = (tensors(run(m.eval(), example)) for m in (model, twin))
    assert ours
    for a, b in zip(ours, theirs, strict=True):  # another attention kernel may round otherwise
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def same_tensors(model: nn.Module, twin: nn.Module) -> None:
    theirs = twin.state_dict()
    assert theirs.keys() == model.state_dict().keys()
    assert all(torch.equal(t, theirs[n]) for n, t in model.state_dict().items())


def test_widths_that_differ_over_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save of one width afterwards also takes away the modelling file."""
    net = case("llama")
    model = net.model().float()
    sites = obc.trace(model, net.example())
    first, second = (s.name for s in sites if s.size == 37)
    uneven = copy.deepcopy(model)
    obc.apply(model, obc.Plan.from_kept(sites, {first: range(20), second: range(20)}))
    obc.apply(uneven, obc.Plan.from_kept(sites, {first: range(20), second: range(21)}))
    saved_without_a_word(uneven, tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted([*WITH, "modeling_pruned.py"])
    assert contents(obc.load(net.build(), tmp_path)) == contents(uneven)
    twin = auto(tmp_path, monkeypatch)
    assert twin.model.layers[1].mlp.gate_proj.out_features == 21
    same_outputs(uneven, twin, net.example())
    ids = torch.tensor([[5, 7, 11]])
    ours, theirs = (m.generate(ids, max_new_tokens=5, do_sample=False) for m in (uneven, twin))
    assert torch.equal(ours, theirs)
    saved_without_a_word(model, tmp_path)
    assert "modeling_pruned.py" not in os.listdir(tmp_path)


def test_no_odd_keys_and_the_tokenizer_beside(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What came from a folder goes back into one: reference, tokenizer, and no report."""
    hf = import_transformers()
    whole, cut_to = tmp_path / "whole", tmp_path / "cut"
    decoder("Llama").save_pretrained(whole)
    tokenizer().save_pretrained(whole)
    model = hf.AutoModelForCausalLM.from_pretrained(whole)
    ids = torch.arange(3, 20)[None]
    sites = obc.trace(model, ids)
    kept = {s.name: range(20) for s in sites if s.size == 37}
    saved_without_a_word(obc.apply(model, obc.Plan.from_kept(sites, kept)), cut_to)
    capfd.readouterr()
    twin = hf.AutoModelForCausalLM.from_pretrained(cut_to)
    assert "UNEXPECTED" not in capfd.readouterr().err
    assert twin.config.intermediate_size == 20
    text = "a whale, ABC."
    theirs = hf.AutoTokenizer.from_pretrained(cut_to)(text)["input_ids"]
    assert theirs == tokenizer()(text)["input_ids"]
    note = json.loads((cut_to / "plan.json").read_text())
    assert note["model"] == f"hf:{whole}"
    assert contents(obc.load(note["model"], cut_to)) == contents(model)


def test_a_configuration_that_gives_other_outputs_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: shapes alone do not convince."""
    from obc.files import saving

    monkeypatch.setattr(saving, "_narrowed", saving._uniform)
    right = saving.fitting_config

    def wrong(model: Any) -> Any:
        config = right(model)
        config.hidden_act = "relu"
        return config

    monkeypatch.setattr(saving, "fitting_config", wrong)
    with pytest.warns(UserWarning, match="cannot load this model: .* differs"):
        obc.save(cut("llama"), tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors", "plan.json"]


def small(name: str) -> tuple[nn.Module, Any]:
    """A family of the sweep, pruned, and its example."""
    model, example = prepare(next(f for f in SWEEP if f.name == name))
    sites = obc.trace(model, example)
    plan = obc.Plan.from_kept(sites, random_kept(sites))
    return obc.apply(model, plan, example=example), example


def test_a_head_width_that_cannot_be_set_is_left_to_the_configuration(tmp_path: Path) -> None:
    model, example = small("FalconForCausalLM")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that its widths are none that a configuration can say
        obc.save(model, tmp_path / "pruned")
    fresh, _ = prepare(next(f for f in SWEEP if f.name == "FalconForCausalLM"))
    again = obc.load(fresh, tmp_path / "pruned")
    with torch.no_grad():
        pairs = zip(tensors(run(model, example)), tensors(run(again, example)), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_experts_whose_kernel_refuses_their_width_are_saved(tmp_path: Path) -> None:
    model, _ = small("MixtralForCausalLM")
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._experts_implementation = "eager"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        obc.save(model, tmp_path / "pruned")
    assert (tmp_path / "pruned" / "model.safetensors").exists()
