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
from tests.hugging import import_transformers
from tests.sensitive import run, tensors

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
    example = floated(case(name).example())
    with torch.no_grad():
        ours, theirs = (tensors(run(m.eval(), example)) for m in (model, twin))
    for a, b in zip(ours, theirs, strict=True):  # another attention kernel may round otherwise
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)
    assert contents(obc.load(case(name).build(), tmp_path)) == contents(model)


def test_in_bf16(tmp_path: Path) -> None:
    model = cut("qwen2").to(torch.bfloat16)
    saved_without_a_word(model, tmp_path)
    twin = type(model).from_pretrained(tmp_path)
    assert {p.dtype for p in twin.parameters()} == {torch.bfloat16}
    auto = import_transformers().AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(auto) is type(model)


@pytest.mark.parametrize("name", ["bert", "gpt2", "hf_convnext"])
def test_heads_that_no_configuration_can_say(name: str, tmp_path: Path) -> None:
    model = cut(name)
    with pytest.warns(UserWarning, match="is for obc.load; from_pretrained cannot load this model"):
        obc.save(model, tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors", "plan.json"]
    assert contents(obc.load(case(name).build(), tmp_path)) == contents(model)


def test_widths_that_differ_over_layers(tmp_path: Path) -> None:
    """The second save also takes away the configuration that the first one wrote."""
    net = case("llama")
    model = net.model().float()
    sites = obc.trace(model, net.example())
    first, second = (s.name for s in sites if s.size == 37)
    uneven = copy.deepcopy(model)
    obc.apply(model, obc.Plan.from_kept(sites, {first: range(20), second: range(20)}))
    obc.apply(uneven, obc.Plan.from_kept(sites, {first: range(20), second: range(21)}))
    saved_without_a_word(model, tmp_path)
    assert sorted(os.listdir(tmp_path)) == WITH
    with pytest.warns(UserWarning, match="widths differ over layers"):
        obc.save(uneven, tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors", "plan.json"]
    assert contents(obc.load(net.build(), tmp_path)) == contents(uneven)


def test_a_configuration_that_gives_other_outputs_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: shapes alone do not convince."""
    from obc.files import saving

    right = saving.fitting_config

    def wrong(model: Any) -> Any:
        config = right(model)
        config.hidden_act = "relu"
        return config

    monkeypatch.setattr(saving, "fitting_config", wrong)
    with pytest.warns(UserWarning, match="cannot load this model: .* differs"):
        obc.save(cut("llama"), tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors", "plan.json"]
