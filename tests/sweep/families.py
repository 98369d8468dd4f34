"""Families of models from transformers, each by a small random configuration, for the sweep."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from tests.hugging import import_transformers

TOKENS: dict[str, Any] = {"input_ids": torch.arange(1, 9)[None]}
PLAIN = {**TOKENS, "use_cache": False}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = {**SIZES, "intermediate_size": 48, "vocab_size": 99}
GROUPED = {**TEXT, "num_key_value_heads": 2}


@dataclass(frozen=True)
class Family:
    """A model's class, what its configuration says, and an example."""

    kind: str
    config: str
    settings: dict[str, Any]
    example: dict[str, Any]
    dtype: torch.dtype = torch.float64

    def build(self) -> nn.Module:
        """The model in eval mode, always with the same weights; grouped kernels know no double."""
        hf = import_transformers()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model: nn.Module = getattr(hf, self.kind)(getattr(hf, self.config)(**self.settings))
        return model.to(self.dtype).eval()


def text(name: str, head: str = "Model", **settings: Any) -> Family:
    return Family(f"{name}{head}", f"{name}Config", {**TEXT, **settings}, TOKENS)


def causal(name: str, **settings: Any) -> Family:
    return Family(f"{name}ForCausalLM", f"{name}Config", {**GROUPED, **settings}, PLAIN)


def image(name: str, size: int, head: str = "Model", **settings: Any) -> Family:
    example = {"pixel_values": torch.linspace(0, 1, 3 * size * size).view(1, 3, size, size)}
    return Family(f"{name}{head}", f"{name}Config", {"image_size": size, **settings}, example)


SWEEP: list[Family] = [
    replace(causal("Mixtral", num_local_experts=4), dtype=torch.float32),
    replace(causal("Olmoe", num_experts=4, num_experts_per_tok=2), dtype=torch.float32),
    causal("Gemma2", head_dim=8),
    causal("Olmo2"),
    causal("StableLm"),
    causal("Cohere"),
    causal("Granite"),
    text("Roberta", "ForSequenceClassification"),
    text("Electra", "ForSequenceClassification", embedding_size=16),
    text("MegatronBert"),
    text("Longformer", attention_window=[4, 4], max_position_embeddings=64),
    text("Nystromformer", segment_means_seq_len=8, num_landmarks=4),
    image("Dinov2", 28, "ForImageClassification", **SIZES, patch_size=14),
    image("ViT", 32, "ForImageClassification", **SIZES, intermediate_size=48, patch_size=8),
    image("Pvt", 64, "ForImageClassification", hidden_sizes=[16, 24, 32, 40], depths=[1, 1, 1, 1]),
    image(
        *("Levit", 64, "ForImageClassification"),
        hidden_sizes=[32, 48, 64],
        num_attention_heads=[2, 3, 4],
        depths=[1, 1, 1],
        key_dim=[8, 8, 8],
    ),
]
