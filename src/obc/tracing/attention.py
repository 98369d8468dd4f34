"""A forward for `nn.MultiheadAttention` that reads its sizes from its weights.

Torch's own insists that queries are as wide as the embedding, so a layer that lost heads or
embedding channels cannot use it. The layer keeps its class, parameters and arguments.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from obc.errors import ObcError
from obc.tracing.layers import Kept, handler


@handler(nn.MultiheadAttention)
def multihead_attention(module: Any, kept: Kept) -> None:
    if module.bias_k is not None or module.add_zero_attn:
        raise ObcError("attention with bias_k or add_zero_attn is not pruned")
    packed = module.in_proj_weight
    query = packed[: len(packed) // 3] if packed is not None else module.q_proj_weight
    module.num_heads = query.shape[0] // module.head_dim
    module.embed_dim = query.shape[1]
    if packed is None:
        module.kdim, module.vdim = module.k_proj_weight.shape[1], module.v_proj_weight.shape[1]
    else:
        module.kdim = module.vdim = module.embed_dim
    # The fused kernels behind eval mode make torch's assumption too; this flag keeps them away.
    module._qkv_same_embed_dim = False
    module.forward = MethodType(attend, module)


@handler(nn.TransformerEncoder)
def encoder(module: Any, kept: Kept) -> None:
    whole = all(layer.self_attn._qkv_same_embed_dim for layer in module.layers)
    module.use_nested_tensor = module.use_nested_tensor and whole


def attend(
    self: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """What `nn.MultiheadAttention.forward` computes, for any number of heads and any width."""
    batched = query.dim() == 3
    axis = 0 if self.batch_first or not batched else 1
    q, k, v = (t.unsqueeze(0) if not batched else t.transpose(0, axis) for t in (query, key, value))
    heads = [
        functional.linear(t, w, b).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        for t, (w, b) in zip((q, k, v), _projections(self), strict=True)
    ]
    mask = _mask(self, heads, attn_mask, key_padding_mask)
    dropout = self.dropout if self.training else 0.0
    weights = None
    if need_weights:
        scores = heads[0] @ heads[1].transpose(-2, -1) * self.head_dim**-0.5
        weights = torch.softmax(scores if mask is None else scores + mask, -1)
        weights = functional.dropout(weights, dropout)
        mixed = weights @ heads[2]
    else:
        mixed = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], mask, dropout)
    out = self.out_proj(mixed.transpose(1, 2).flatten(2))
    if weights is not None and average_attn_weights:
        weights = weights.mean(1)
    if not batched:
        return out.squeeze(0), None if weights is None else weights.squeeze(0)
    return out.transpose(0, axis), weights


def _projections(self: Any) -> list[tuple[Tensor, Tensor | None]]:
    if self.in_proj_weight is not None:
        weights = self.in_proj_weight.chunk(3)
    else:
        weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
    biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
    return list(zip(weights, biases, strict=True))


def _mask(
    self: Any, heads: list[Tensor], attn_mask: Tensor | None, padding: Tensor | None
) -> Tensor | None:
    """Both masks as one addend to the scores [batch, heads, queries, keys]."""
    batch, _, length, _ = heads[0].shape
    total = None
    if attn_mask is not None:
        if attn_mask.dim() == 3:  # one mask per head: those of removed heads are not known here
            attn_mask = attn_mask.view(batch, -1, length, heads[1].shape[2])
        total = _additive(attn_mask, heads[0].dtype)
    if padding is not None:
        keys = _additive(padding, heads[0].dtype).view(batch, 1, 1, -1)
        total = keys if total is None else total + keys
    return total


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))
