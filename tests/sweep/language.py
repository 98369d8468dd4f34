"""Language models of transformers for the sweep, from small configurations."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from tests.examples import tokens
from tests.sweep.families import Family, hugging

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = {**SIZES, "intermediate_size": 48, "vocab_size": 99}
GROUPED = {
    **TEXT,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BART = {
    "vocab_size": 99,
    "d_model": 32,
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 48),
}


def ids(**more: Any) -> dict[str, Any]:
    """Eight tokens."""
    return {"input_ids": tokens(99, 1, 8), **more}


def encoder(kind: str, **settings: Any) -> Family:
    """A model that reads a text at once."""
    return Family("transformers", kind, partial(hugging, kind, {**TEXT, **settings}), ids)


def causal(name: str, **settings: Any) -> Family:
    """A model that reads from left to right."""
    kind = f"{name}ForCausalLM"
    build = partial(hugging, kind, {**GROUPED, **settings})
    return Family("transformers", kind, build, partial(ids, use_cache=False))


def plain(kind: str, **settings: Any) -> Family:
    """A model whose configuration has names of its own."""
    return Family("transformers", kind, partial(hugging, kind, settings), ids)


def pair(kind: str, **settings: Any) -> Family:
    """A model that reads one text and writes another."""
    example = partial(ids, decoder_input_ids=tokens(99, 1, 6), use_cache=False)
    return Family("transformers", kind, partial(hugging, kind, settings), example)


def experts(family: Family) -> Family:
    """Kernels for groups of experts know no double precision."""
    return Family(family.library, family.name, family.build, family.example, dtype=torch.float32)


LANGUAGE = [
    experts(causal("Mixtral", num_local_experts=4)),
    experts(causal("Olmoe", num_experts=4, num_experts_per_tok=2)),
    experts(causal("Qwen2Moe", num_experts=4, moe_intermediate_size=24, decoder_sparse_step=1)),
    causal("Gemma", head_dim=8),
    causal("Gemma2", head_dim=8),
    causal("Olmo"),
    causal("Olmo2"),
    causal("StableLm"),
    causal("Cohere"),
    causal("Granite"),
    causal("Starcoder2"),
    causal("Phi"),
    causal("Persimmon"),
    causal("Nemotron"),
    causal("Glm", head_dim=8),
    causal("SmolLM3"),
    causal("Helium", head_dim=8),
    plain("GPTNeoXForCausalLM", **TEXT),
    plain(
        "GPTNeoForCausalLM",
        **{"hidden_size": 32, "num_heads": 4, "num_layers": 2, "vocab_size": 99},
        attention_types=[[["global", "local"], 1]],
    ),
    plain("GPTJForCausalLM", n_embd=32, n_layer=2, n_head=4, rotary_dim=4, vocab_size=99),
    plain("GPTBigCodeForCausalLM", n_embd=32, n_layer=2, n_head=4, vocab_size=99),
    plain("CodeGenForCausalLM", n_embd=32, n_layer=2, n_head=4, rotary_dim=4, vocab_size=99),
    plain("OPTForCausalLM", **SIZES, ffn_dim=48, vocab_size=99, word_embed_proj_dim=32),
    plain("BloomForCausalLM", hidden_size=32, n_layer=2, n_head=4, vocab_size=99),
    plain("FalconForCausalLM", **SIZES, vocab_size=99),
    plain("MptForCausalLM", d_model=32, n_layers=2, n_heads=4, vocab_size=99),
    plain("RwkvForCausalLM", hidden_size=32, num_hidden_layers=2, vocab_size=99),
    plain("MambaForCausalLM", hidden_size=32, num_hidden_layers=2, vocab_size=99, state_size=4),
    plain(
        "XLNetLMHeadModel",
        **{"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48, "vocab_size": 99},
        use_mems_eval=False,  # they are hidden states, and handed out
    ),
    plain("CTRLLMHeadModel", n_embd=32, n_layer=2, n_head=4, dff=48, vocab_size=99),
    encoder("RobertaForSequenceClassification"),
    encoder("ElectraForSequenceClassification", embedding_size=16),
    encoder("AlbertForSequenceClassification", embedding_size=16),
    encoder("CamembertForTokenClassification"),
    encoder("XLMRobertaForMaskedLM"),
    encoder("MPNetModel"),
    encoder("MegatronBertModel"),
    encoder("ConvBertForSequenceClassification", embedding_size=16),
    encoder("DebertaV2ForSequenceClassification", relative_attention=True, pos_att_type=["p2c"]),
    encoder("LongformerModel", attention_window=[4, 4], max_position_embeddings=64),
    encoder("NystromformerModel", segment_means_seq_len=8, num_landmarks=4),
    encoder("RoFormerForSequenceClassification"),
    encoder("LayoutLMModel"),
    encoder("ErnieModel"),
    encoder("FNetModel"),
    encoder("ModernBertForSequenceClassification", pad_token_id=0),
    encoder("SqueezeBertForSequenceClassification", embedding_size=32),
    encoder("MobileBertForSequenceClassification", embedding_size=16, intra_bottleneck_size=16),
    encoder("IBertModel"),
    encoder("YosoModel"),
    plain("XLMModel", emb_dim=32, n_layers=2, n_heads=4, n_words=99),
    plain(
        "FunnelModel", d_model=32, n_head=4, d_head=8, d_inner=48, block_sizes=[1, 1], vocab_size=99
    ),
    pair("BartForConditionalGeneration", **BART),
    pair("MarianMTModel", **BART, decoder_start_token_id=0, pad_token_id=0),
    pair("PegasusForConditionalGeneration", **BART),
    pair("BlenderbotForConditionalGeneration", **BART),
    pair("M2M100ForConditionalGeneration", **BART),
    pair(
        "MT5ForConditionalGeneration",
        **{"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 99},
    ),
    pair(
        "ProphetNetForConditionalGeneration",
        **{"hidden_size": 32, "vocab_size": 99, "ngram": 2},
        **dict.fromkeys(("num_encoder_layers", "num_decoder_layers"), 2),
        **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), 4),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 48),
    ),
    experts(
        pair(
            "SwitchTransformersForConditionalGeneration",
            **{"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
            **{"vocab_size": 99, "num_experts": 4, "num_decoder_layers": 2},
        )
    ),
]
