"""Attention as people write it: fused and separate projections, PyTorch's modules, einsum."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.nets.blocks import Head, conv_bn


class FusedAttention(nn.Module):
    """One layer makes queries, keys and values; they are parted in several ways."""

    def __init__(self, dim: int, heads: int, head_dim: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.num_heads = heads
        self.head_dim = head_dim
        self.qkv = nn.Linear(dim, 3 * heads * head_dim)
        self.proj = nn.Linear(heads * head_dim, dim)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, tokens, _ = x.shape
        heads = self.num_heads if self.kind.endswith("literal") else -1
        qkv = self.qkv(x)
        if self.kind.startswith("unbind"):
            qkv = qkv.reshape(batch, tokens, 3, heads, self.head_dim).permute(2, 0, 3, 1, 4)
            query, key, value = qkv.unbind(0)
        else:
            shape = (batch, tokens, heads, self.head_dim)
            query, key, value = (p.view(shape).transpose(1, 2) for p in qkv.chunk(3, -1))
        return query, key, value

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, channels = x.shape
        query, key, value = self.parts(x)
        weights = (query @ key.transpose(-2, -1) / math.sqrt(self.head_dim)).softmax(-1)
        mixed = (weights @ value).transpose(1, 2)
        if self.kind.endswith("literal"):
            return self.proj(mixed.reshape(batch, tokens, channels))
        return self.proj(mixed.flatten(2))


class SeparateAttention(nn.Module):
    """A projection each for queries, keys and values; several query heads may share a key head."""

    def __init__(self, dim: int, heads: int, key_heads: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.share = heads // key_heads
        self.query = nn.Linear(dim, heads * head_dim)
        self.key = nn.Linear(dim, key_heads * head_dim, bias=False)
        self.value = nn.Linear(dim, key_heads * head_dim)
        self.out = nn.Linear(heads * head_dim, dim)

    def heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        query = self.heads(self.query(x))
        key = self.heads(self.key(x)).repeat_interleave(self.share, 1)
        value = self.heads(self.value(x)).repeat_interleave(self.share, 1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class EinsumAttention(nn.Module):
    """Weights of shape (width, heads, head width) as bare parameters, and einsum throughout."""

    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        scale = dim**-0.5
        self.query = nn.Parameter(torch.randn(dim, heads, head_dim) * scale)
        self.key = nn.Parameter(torch.randn(dim, heads, head_dim) * scale)
        self.value = nn.Parameter(torch.randn(dim, heads, head_dim) * scale)
        self.out = nn.Parameter(torch.randn(heads, head_dim, dim) * scale)

    def forward(self, x: Tensor) -> Tensor:
        query = torch.einsum("bnd,dhk->bhnk", x, self.query)
        key = torch.einsum("bnd,dhk->bhnk", x, self.key)
        value = torch.einsum("bnd,dhk->bhnk", x, self.value)
        weights = torch.einsum("bhnk,bhmk->bhnm", query, key).softmax(-1)
        return torch.einsum("bhnm,bhmk,hkd->bnd", weights, value, self.out)


class LinearAttention(nn.Module):
    """Keys and values are summed up first, so that the cost is linear in the number of tokens."""

    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.to_qkv = nn.Linear(dim, 3 * heads * head_dim, bias=False)
        self.to_out = nn.Linear(heads * head_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        parts = (p.unflatten(-1, (-1, self.head_dim)) for p in self.to_qkv(x).chunk(3, -1))
        query, key, value = parts
        query, key = F.elu(query) + 1, F.elu(key) + 1
        context = torch.einsum("bnhk,bnhv->bhkv", key, value)
        norm = torch.einsum("bnhk,bhk->bnh", query, key.sum(1))
        mixed = torch.einsum("bnhk,bhkv->bnhv", query, context) / norm[..., None]
        return self.to_out(mixed.flatten(2))


class RotaryAttention(nn.Module):
    """Queries and keys are normed per head, then turned, each channel together with its partner."""

    def __init__(self, dim: int, heads: int, head_dim: int, interleaved: bool) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.interleaved = interleaved
        self.query = nn.Linear(dim, heads * head_dim)
        self.key = nn.Linear(dim, heads * head_dim)
        self.value = nn.Linear(dim, heads * head_dim)
        self.query_norm = nn.RMSNorm(head_dim)
        self.key_norm = nn.LayerNorm(head_dim)
        self.out = nn.Linear(heads * head_dim, dim)

    def turn(self, x: Tensor) -> Tensor:
        half = self.head_dim // 2
        steps = torch.arange(x.shape[2], dtype=x.dtype, device=x.device)
        angle = steps[:, None] * 0.7 ** torch.arange(half, dtype=x.dtype, device=x.device)
        if self.interleaved:
            even, odd = x[..., ::2], x[..., 1::2]
            pairs = (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos())
            return torch.stack(pairs, -1).flatten(-2)
        angle = torch.cat([angle, angle], -1)
        turned = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * angle.cos() + turned * angle.sin()

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        shape = (batch, tokens, -1, self.head_dim)
        query = self.turn(self.query_norm(self.query(x).view(shape)).transpose(1, 2))
        key = self.turn(self.key_norm(self.key(x).view(shape)).transpose(1, 2))
        value = self.value(x).view(shape).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, -1))


class Block(nn.Module):
    """A given attention and an MLP, normed before."""

    def __init__(self, dim: int, attention: nn.Module) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = attention
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim + 7), nn.GELU(), nn.Linear(dim + 7, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """An input layer, two blocks and a head that reads the mean token."""

    def __init__(self, dim: int, *attention: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Linear(5, dim)
        self.blocks = nn.Sequential(*(Block(dim, a) for a in attention))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.stem(x))).mean(1))


class SelfAttention(nn.Module):
    """nn.MultiheadAttention over one sequence, tokens or batch first, weights asked for or not."""

    def __init__(self, batch_first: bool, need_weights: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.need_weights = need_weights
        self.stem = nn.Linear(5, 12)
        self.attention = nn.MultiheadAttention(12, 4, batch_first=batch_first)
        self.norm = nn.LayerNorm(12)
        self.mlp = nn.Sequential(nn.Linear(12, 17), nn.ReLU(), nn.Linear(17, 12))
        self.head = nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = x if self.batch_first else x.transpose(0, 1)
        y, _ = self.attention(y, y, y, need_weights=self.need_weights)
        x = self.norm(x + (y if self.batch_first else y.transpose(0, 1)))
        return self.head((x + self.mlp(x)).mean(1))


class CrossAttention(nn.Module):
    """Queries from one sequence; keys and values from another, of the same or of other widths."""

    def __init__(self, batch_first: bool, same: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        keys, values = (12, 12) if same else (9, 7)
        self.stem = nn.Linear(5, 12)
        self.keys = nn.Linear(4, keys)
        self.values = nn.Linear(4, values)
        self.attention = nn.MultiheadAttention(
            12, 3, kdim=keys, vdim=values, batch_first=batch_first, bias=same, add_bias_kv=not same
        )
        self.hidden = nn.Linear(12, 10)
        self.head = nn.Linear(10, 6)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        if not self.batch_first:
            x, memory = x.transpose(0, 1), memory.transpose(0, 1)
        y, weights = self.attention(self.stem(x), self.keys(memory), self.values(memory))
        y = self.head(F.relu(self.hidden(y)))
        return (y if self.batch_first else y.transpose(0, 1)) + weights.sum(-1, keepdim=True)


class Encoder(nn.Module):
    """PyTorch's own encoder: one layer, or a stack of two with a mask over padding."""

    def __init__(self, norm_first: bool, stack: bool, batch_first: bool = True) -> None:
        super().__init__()
        self.stem = nn.Linear(5, 12)
        layer = nn.TransformerEncoderLayer(
            12, 4, 19, batch_first=batch_first, norm_first=norm_first, activation="gelu"
        )
        self.stack = stack
        # Nested tensors drop the padded tokens, and pruning has nothing to add to that.
        self.encoder = (
            nn.TransformerEncoder(layer, 2, nn.LayerNorm(12), enable_nested_tensor=False)
            if stack
            else layer
        )
        self.hidden = nn.Linear(12, 10)
        self.head = nn.Linear(10, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        if self.stack:
            padding = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
            padding[0, -2:] = True
            x = self.encoder(x, src_key_padding_mask=padding)
        else:
            x = self.encoder(x)
        return self.head(F.relu(self.hidden(x))).mean(1)


class EncoderDecoder(nn.Module):
    """nn.Transformer as a whole, with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.source = nn.Linear(5, 12)
        self.target = nn.Embedding(11, 12)
        self.body = nn.Transformer(12, 2, 1, 2, 17, batch_first=True)
        self.head = nn.Linear(12, 11)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        length = target.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool, device=source.device).triu(1)
        return self.head(self.body(self.source(source), self.target(target), tgt_mask=mask))


class NonLocal(nn.Module):
    """Attention between the positions of an image, within a residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 10)
        self.theta = nn.Conv2d(10, 5, 1)
        self.phi = nn.Conv2d(10, 5, 1)
        self.g = nn.Conv2d(10, 6, 1)
        self.out = nn.Conv2d(6, 10, 1)
        self.bn = nn.BatchNorm2d(10)
        self.head = Head(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        theta = self.theta(x).flatten(2).transpose(1, 2)
        phi = F.max_pool2d(self.phi(x), 2).flatten(2)
        g = F.max_pool2d(self.g(x), 2).flatten(2).transpose(1, 2)
        mixed = torch.bmm(torch.bmm(theta, phi).softmax(-1), g)
        mixed = mixed.transpose(1, 2).reshape(x.shape[0], -1, *x.shape[2:])
        return self.head(x + self.bn(self.out(mixed)))


class MixerBlock(nn.Module):
    """An MLP over the tokens, then one over the channels."""

    def __init__(self, tokens: int, dim: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.tokens = nn.Sequential(nn.Linear(tokens, 11), nn.GELU(), nn.Linear(11, tokens))
        self.norm2 = nn.LayerNorm(dim)
        self.channels = nn.Sequential(nn.Linear(dim, 19), nn.GELU(), nn.Linear(19, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    """MLP-Mixer over patches: tokens are a layer's features too."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 14, 4, 4)
        self.blocks = nn.Sequential(MixerBlock(9, 14), MixerBlock(9, 14))
        self.norm = nn.LayerNorm(14)
        self.head = nn.Linear(14, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


class WindowAttention(nn.Module):
    """Attention within shifted squares of an image, with a bias for each pair of positions."""

    index: Tensor

    def __init__(self, dim: int, heads: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.head_dim = dim // heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.table = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads))
        place = torch.stack(torch.meshgrid(*[torch.arange(window)] * 2, indexing="ij")).flatten(1)
        offset = place[:, :, None] - place[:, None, :] + window - 1
        self.register_buffer("index", offset[0] * (2 * window - 1) + offset[1])

    def forward(self, x: Tensor) -> Tensor:
        batch, height, width, channels = x.shape
        w = self.window
        x = torch.roll(x, (-1, -1), (1, 2))
        x = (
            x.view(batch, height // w, w, width // w, w, channels)
            .transpose(2, 3)
            .reshape(-1, w * w, channels)
        )
        qkv = self.qkv(x).view(x.shape[0], w * w, 3, -1, self.head_dim).permute(2, 0, 3, 1, 4)
        bias = self.table[self.index].permute(2, 0, 1)
        mixed = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], bias[None])
        x = self.proj(mixed.transpose(1, 2).flatten(2))
        x = x.view(batch, height // w, width // w, w, w, -1).transpose(2, 3)
        return torch.roll(x.reshape(batch, height, width, -1), (1, 1), (1, 2))


class Windowed(nn.Module):
    """Window attention over an image, and patches merged four to one."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 12, 2, 2)
        self.block = Block(12, WindowAttention(12, 3, 2))
        self.norm = nn.LayerNorm(48)
        self.merge = nn.Linear(48, 10, bias=False)
        self.head = nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(self.patches(x).permute(0, 2, 3, 1))
        corners = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        x = self.merge(self.norm(torch.cat(corners, -1)))
        return self.head(F.gelu(x).mean((1, 2)))
