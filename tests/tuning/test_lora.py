"""Adapters: folded they are what they were beside the weights; a recipe leaves a plain model."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import obc
from obc.tasks import Language
from obc.tuning import lora
from obc.tuning.recipe import Lora, Recipe
from tests import vision
from tests.hugging import decoder

pytestmark = pytest.mark.skipif(
    not (vision.installed("transformers") and vision.installed("peft")),
    reason="transformers or peft is not installed",
)


def llama() -> Any:
    torch.manual_seed(0)
    return decoder("Llama", tie_word_embeddings=True).eval()


def language() -> Language:
    ids = (torch.arange(1200) * 7) % 11 + 3
    return Language(ids, ids[:200], length=20, row=16)


def pruned(model: Any, task: Language, equivalent: bool) -> Any:
    sites = obc.trace(model, task.example())
    kept = {s.name: range(s.size - s.size // 3) for s in sites if "mlp" in s.name or s.heads}
    return obc.apply(model, obc.Plan.from_kept(sites, kept), equivalent=equivalent)


def test_folding_changes_no_output() -> None:
    model = llama().double()
    ids = language().example()
    with torch.no_grad():
        before = model(ids).logits
        names = [n for n, _ in model.named_parameters()]
        lora.attach(model, Lora(rank=3, alpha=6))
        torch.testing.assert_close(model(ids).logits, before)  # B is zero at first
        for name, p in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(p, std=0.1)
        beside = model(ids).logits
        assert (beside - before).abs().max() > 1e-3
        lora.fold(model)
        torch.testing.assert_close(model(ids).logits, beside)
    assert [n for n, _ in model.named_parameters()] == names


def test_only_adapters_and_factors_learn() -> None:
    model = pruned(llama(), language(), equivalent=True)
    lora.attach(model, Lora(rank=2))
    learning = {n for n, p in model.named_parameters() if p.requires_grad}
    assert learning and all("lora_" in n or ".matrices." in n for n in learning)
    assert any("lora_" in n for n in learning) and any(".matrices." in n for n in learning)
    assert not any("lm_head" in n or "embed" in n for n in learning)


@pytest.mark.parametrize("equivalent", [False, True])
def test_a_recipe_leaves_a_plain_model_that_is_better(equivalent: bool) -> None:
    task, whole = language(), llama()
    model = pruned(copy.deepcopy(whole), task, equivalent)
    plain = pruned(copy.deepcopy(whole), task, equivalent=False)
    before = task.evaluate(model).perplexity
    recipe = Recipe(
        lr=0.02, epochs=2, batch_size=8, optimizer="adamw", lora={"rank": 4}, schedule="constant",
        distill=0.3,
    )  # fmt: skip
    tuned = obc.finetune(model, task, recipe, teacher=whole)
    assert tuned.last is not None
    assert task.evaluate(model).perplexity < 0.8 * before
    assert task.evaluate(model).perplexity == pytest.approx(tuned.last.value, rel=1e-4)
    assert type(model) is type(whole)
    shapes = {n: p.shape for n, p in plain.named_parameters()}
    assert {n: p.shape for n, p in model.named_parameters()} == shapes
    assert all(p.requires_grad for p in model.parameters())
    assert torch.equal(model.lm_head.weight, plain.lm_head.weight)
