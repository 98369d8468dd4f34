"""ViT-B/16 for ImageNet, with torchvision's parameter names."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from obc.errors import ObcError


class EncoderBlock(nn.Module):
    """Attention and a two-layer MLP, each normalised before and added after."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(dim, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(dim, eps=1e-6)
        first, second = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        for layer in (first, second):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.normal_(layer.bias, std=1e-6)
        # Torchvision's dropout of rate zero: it gives the second layer its name.
        self.mlp = nn.Sequential(first, nn.GELU(), nn.Dropout(0.0), second)

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y, need_weights=False)[0]
        x = x + self.mlp(self.ln_2(x))
        return x


class Encoder(nn.Module):
    """Learned positions, blocks, and a norm."""

    def __init__(self, tokens: int, dim: int, depth: int, heads: int) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.randn(1, tokens, dim) * 0.02)
        self.layers = nn.Sequential(
            OrderedDict((f"encoder_layer_{i}", EncoderBlock(dim, heads)) for i in range(depth))
        )
        self.ln = nn.LayerNorm(dim, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.ln(self.layers(x + self.pos_embedding))
        return y


class VisionTransformer(nn.Module):
    """Patches of 16x16 pixels and a class token through an encoder; the token is classified."""

    def __init__(
        self, image: int, num_classes: int, in_channels: int, dim: int, depth: int, heads: int
    ) -> None:
        super().__init__()
        if image % 16:
            raise ObcError(f"an image of {image} pixels does not divide into patches of 16")
        self.conv_proj = nn.Conv2d(in_channels, dim, 16, 16)
        self.class_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.encoder = Encoder((image // 16) ** 2 + 1, dim, depth, heads)
        self.heads = nn.Sequential(OrderedDict(head=nn.Linear(dim, num_classes)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], dim=1)
        logits: Tensor = self.heads(self.encoder(x)[:, 0])
        return logits


def vit_b_16(
    image: int = 224,
    num_classes: int = 1000,
    in_channels: int = 3,
    dim: int = 768,
    depth: int = 12,
    heads: int = 12,
) -> VisionTransformer:
    """ViT-B/16 (Dosovitskiy et al. 2021): 17.6 B MACs at 224x224, 86.6 M parameters.

    Args:
        image: height and width of the images, a multiple of 16
        num_classes: outputs of the classifier
        in_channels: colours of the images
        dim: width of the tokens; the hidden layers of the MLPs are four times as wide
        depth: blocks
        heads: attention heads of each block

    >>> sum(p.numel() for p in vit_b_16(dim=48, depth=2, heads=3, num_classes=5).parameters())
    103301
    """
    return VisionTransformer(image, num_classes, in_channels, dim, depth, heads)
