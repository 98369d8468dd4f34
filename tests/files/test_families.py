"""Families of decoders, end to end: cut, saved, loaded by plain transformers, the same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import obc
from obc.files.modelling import MODELLING
from obc.search.choice import kind_of
from tests import vision
from tests.hugging import import_transformers

pytestmark = pytest.mark.skipif(
    not vision.installed("transformers"), reason="transformers is not installed"
)
WORDS = {"vocab_size": 53, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SHORT = {"num_hidden_layers": 2, "num_attention_heads": 4, **WORDS}
LARGE = {"hidden_size": 32, "max_position_embeddings": 64, **SHORT}
WIDE = {**LARGE, "intermediate_size": 48}
GROUPED = {**WIDE, "num_key_value_heads": 2}
HEADED = {**GROUPED, "head_dim": 8}
ROUTED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LAYERED = {
    **{"global_head_dim": 8, "num_kv_shared_layers": 0},
    **{"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 53},
}
LATENT = {
    **{"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8},
    **{"v_head_dim": 8, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1},
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
}
# Whether a configuration can say one width over layers, when heads have gone too if they can.
FAMILIES: dict[str, tuple[dict[str, Any], bool]] = {
    "Qwen2ForCausalLM": (GROUPED, True),
    "LlamaForCausalLM": (GROUPED, True),
    "Qwen3ForCausalLM": (HEADED, True),
    "MistralForCausalLM": (GROUPED, True),
    "PhiForCausalLM": (GROUPED, True),
    "Phi3ForCausalLM": (GROUPED, True),
    "GemmaForCausalLM": (HEADED, True),
    "Gemma2ForCausalLM": (HEADED, True),
    "Gemma3ForCausalLM": (HEADED, True),
    "Gemma4ForCausalLM": ({**HEADED, **LAYERED}, True),
    "StableLmForCausalLM": (GROUPED, False),
    "Olmo2ForCausalLM": (GROUPED, True),
    "GraniteForCausalLM": (GROUPED, True),
    "SmolLM3ForCausalLM": (GROUPED, True),
    "Starcoder2ForCausalLM": (GROUPED, True),
    "CohereForCausalLM": (GROUPED, True),
    "GPT2LMHeadModel": ({"n_embd": 32, "n_layer": 2, "n_head": 4, **WORDS}, False),
    "OPTForCausalLM": ({**LARGE, "ffn_dim": 48, "word_embed_proj_dim": 32}, False),
    "GPTNeoXForCausalLM": (WIDE, False),
    "FalconForCausalLM": ({"hidden_size": 32, **SHORT}, True),
    "BloomForCausalLM": ({"hidden_size": 32, "n_layer": 2, "n_head": 4, **WORDS}, False),
    "MixtralForCausalLM": ({**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}, True),
    "Qwen2MoeForCausalLM": ({**GROUPED, **ROUTED, "shared_expert_intermediate_size": 40}, True),
    "Qwen3MoeForCausalLM": ({**HEADED, **ROUTED}, True),
    "OlmoeForCausalLM": ({**GROUPED, "num_experts": 4, "num_experts_per_tok": 2}, False),
    "DeepseekV3ForCausalLM": ({**WIDE, **LATENT}, False),
    "GptOssForCausalLM": ({**HEADED, "num_local_experts": 4, "num_experts_per_tok": 2}, True),
}
HEADS_STAY = {"FalconForCausalLM", "BloomForCausalLM", "DeepseekV3ForCausalLM"}
QUICK = "Qwen2ForCausalLM"
IDS = torch.tensor([[5, 7, 11, 4, 9, 20]])


def small(name: str, uneven: int) -> Any:
    """A family with half of its inner channels and heads; the first site keeps `uneven` more."""
    kind = getattr(import_transformers(), name)
    torch.manual_seed(0)
    model = kind(kind.config_class(**FAMILIES[name][0])).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.ndim > 1 else 1)  # else all logits are nearly the same
    sites = obc.trace(model, IDS)
    inner = [s for s in sites if kind_of(s) in ("ffn", "heads")]
    assert {kind_of(s) for s in inner} == {"ffn", *(() if name in HEADS_STAY else ("heads",))}
    kept = {s.name: range(s.size // 2) for s in inner}
    first = next(s for s in inner if kind_of(s) == "ffn")
    kept[first.name] = range(first.size // 2 + uneven)
    return obc.apply(model, obc.Plan.from_kept(sites, kept))


def generated(model: Any) -> torch.Tensor:
    mask = torch.ones_like(IDS)
    tokens: torch.Tensor = model.generate(
        IDS, attention_mask=mask, max_new_tokens=10, do_sample=False, eos_token_id=None
    )
    return tokens


@pytest.mark.parametrize(
    "name", [n if n == QUICK else pytest.param(n, marks=pytest.mark.slow) for n in FAMILIES]
)
def test_what_was_cut_generates_the_same_elsewhere(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    hf = import_transformers()
    modules = "transformers.dynamic_module_utils.HF_MODULES_CACHE"
    monkeypatch.setattr(modules, str(tmp_path / "code"))
    for uneven in (0, 1):
        model, folder = small(name, uneven), tmp_path / str(uneven)
        obc.save(model, folder)
        plain = not (folder / MODELLING).exists()
        assert plain == (FAMILIES[name][1] and not uneven)
        capfd.readouterr()
        trust = {} if plain else {"trust_remote_code": True}
        twin = hf.AutoModelForCausalLM.from_pretrained(folder, **trust).eval()
        said = capfd.readouterr().err
        assert not any(word in said for word in ("UNEXPECTED", "MISSING", "MISMATCH"))
        with torch.no_grad():
            torch.testing.assert_close(twin(IDS).logits, model(IDS).logits)
        assert torch.equal(generated(twin), generated(model))
