"""A plain vision transformer whose reshapes follow the weights, so that heads can be pruned."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Self-attention from one fused layer, whose width says how many heads there are."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.head_dim = dim // heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, -1, self.head_dim)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """Attention and a two-layer MLP, each normalised before and added after."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        x = x + self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return x


class ViT(nn.Module):
    """Patches, a class token, learned positions and blocks; the class token is classified."""

    def __init__(
        self,
        image: int,
        patch: int,
        dim: int,
        depth: int,
        heads: int,
        classes: int,
        in_channels: int,
    ) -> None:
        super().__init__()
        if image % patch:
            raise ValueError(f"an image of {image} pixels does not divide into patches of {patch}")
        if dim % heads:
            raise ValueError(f"{dim} channels do not divide into {heads} heads")
        self.patches = nn.Conv2d(in_channels, dim, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, dim) * 0.02)
        self.blocks = nn.Sequential(*(Block(dim, heads, 4 * dim) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        x = self.norm(self.blocks(x))
        logits: Tensor = self.head(x[:, 0])
        return logits


def vit_small(
    image: int = 32,
    patch: int = 4,
    dim: int = 64,
    depth: int = 4,
    heads: int = 4,
    classes: int = 10,
    in_channels: int = 3,
) -> ViT:
    """A ViT for small images; `vit_small(image=8, patch=2, in_channels=1)` takes the digits."""
    return ViT(image, patch, dim, depth, heads, classes, in_channels)
