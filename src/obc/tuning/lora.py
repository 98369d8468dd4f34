"""LoRA through peft: adapters learn beside frozen weights, and are folded into them at the end."""

from __future__ import annotations

from typing import Any

from torch import nn

from obc.equivalent.factors import Mix
from obc.errors import ObcError
from obc.models.resolver import library
from obc.tuning.recipe import Lora


def attach(model: nn.Module, lora: Lora) -> None:
    """Put adapters on all linear layers in place, W + (alpha / rank) B A, with B = 0.

    E. Hu et al., LoRA: Low-Rank Adaptation of Large Language Models. The head stays as it is. Of
    the model's own parameters only C and D of an equivalent pruning go on learning.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = dict(hidden_size=8, intermediate_size=12, num_hidden_layers=1, vocab_size=10)
    >>> model = LlamaForCausalLM(LlamaConfig(num_attention_heads=2, **sizes))
    >>> attach(model, Lora(rank=2))
    >>> sum(p.numel() for p in model.parameters() if p.requires_grad)
    248
    >>> fold(model)
    >>> model.model.layers[0].mlp.down_proj
    Linear(in_features=12, out_features=8, bias=False)
    """
    peft = library("peft", "hf")
    head_of: Any = getattr(model, "get_output_embeddings", lambda: None)
    head = head_of()
    names = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and m is not head]
    if not names:
        raise ObcError("lora: the model has no linear layers to put adapters on")
    config = peft.LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=names
    )
    peft.inject_adapter_in_model(config, model)
    for module in model.modules():
        if isinstance(module, Mix):
            module.requires_grad_(True)


def fold(model: nn.Module) -> None:
    """Add the adapters to the weights, and leave the layers as they were before `attach`."""
    kind = library("peft.tuners.lora", "hf").LoraLayer
    layers: dict[str, Any] = {n: m for n, m in model.named_modules() if isinstance(m, kind)}
    for name, layer in layers.items():
        layer.merge()
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer.get_base_layer())
