"""What random networks are made of: one small function per kind of step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.kinds import BINARY, MIXING, UNARY, Made, Pick, axis, channels, divisors, do, unary

__all__ = ["BINARY", "MIXING", "UNARY"]


def same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape


def same_but_channels(a: Tensor, b: Tensor) -> bool:
    if a.ndim != b.ndim:
        return False
    gone = axis(a)
    return a.shape[:gone] + a.shape[gone + 1 :] == b.shape[:gone] + b.shape[gone + 1 :]


def gates(x: Tensor, v: Tensor) -> bool:
    return v.ndim == 2 and x.ndim > 2 and v.shape == (x.shape[0], channels(x))


def spread(x: Tensor, v: Tensor) -> Tensor:
    return v[:, None] if x.ndim == 3 else v[:, :, None, None]


BINARY |= {
    "add": (same, lambda m, a, b: a + b),
    "multiply": (same, lambda m, a, b: a * torch.tanh(b)),
    "subtract": (same, lambda m, a, b: torch.maximum(a, b) - 0.3 * b),
    "join": (same_but_channels, lambda m, a, b: torch.cat([a, b], axis(a))),
    "join twice": (same_but_channels, lambda m, a, b: torch.cat([b, a, b], axis(a))),
    "gate": (gates, lambda m, x, v: x * torch.sigmoid(spread(x, v))),
    "stack": (same, lambda m, a, b: torch.stack([a, b], -1).amax(-1)),
}


# Layers that mix channels by weights.


@unary(4)
def conv(pick: Pick, x: Tensor) -> Made:
    kernel = pick.one((3, 1))
    return nn.Conv2d(channels(x), pick.width(), kernel, padding=kernel // 2, bias=pick.flag())


@unary(4)
def depthwise(pick: Pick, x: Tensor) -> Made:
    wide = channels(x)
    return nn.Conv2d(wide, wide * pick.one((1, 2)), 3, padding=1, groups=wide)


@unary(4)
def grouped(pick: Pick, x: Tensor) -> Made:
    if channels(x) < 4 or not divisors(channels(x))[:-1]:
        return None
    groups = pick.one(divisors(channels(x))[:-1])
    kind = pick.one((nn.Conv2d, nn.ConvTranspose2d))
    return kind(channels(x), groups * pick.one((2, 1, 3)), 3, padding=1, groups=groups)


@unary(4)
def upward(pick: Pick, x: Tensor) -> Made:
    return nn.ConvTranspose2d(channels(x), pick.width(), 2, 2) if x.shape[-1] < 5 else None


@unary(2, 3)
def linear(pick: Pick, x: Tensor) -> Made:
    return nn.Linear(channels(x), pick.width(), bias=pick.flag())


@unary(2, 3)
def bare(pick: Pick, x: Tensor) -> Made:
    weight = nn.Parameter(torch.ones(channels(x), pick.width()))
    return do("bare", lambda m, x: x @ m.weight, weight=weight)


@unary(3)
def mixer(pick: Pick, x: Tensor) -> Made:
    layers = {"up": nn.Linear(x.shape[1], 6), "down": nn.Linear(6, x.shape[1])}
    return do("mixer", lambda m, x: x + m.down(F.gelu(m.up(x.mT))).mT, **layers)


# Norms and per-channel parameters.


@unary(2, 4)
def batch_norm(pick: Pick, x: Tensor) -> Made:
    kind = nn.BatchNorm2d if x.ndim == 4 else nn.BatchNorm1d
    return kind(channels(x), affine=pick.flag())


@unary(4)
def group_norm(pick: Pick, x: Tensor) -> Made:
    return nn.GroupNorm(pick.one((1, *divisors(channels(x)))), channels(x))


@unary(4)
def layer_norm_2d(pick: Pick, x: Tensor) -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        return m.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    return do("layer_norm_2d", run, norm=nn.LayerNorm(channels(x)))


@unary(2, 3)
def layer_norm(pick: Pick, x: Tensor) -> Made:
    return pick.one((nn.LayerNorm, nn.RMSNorm))(channels(x))


@unary(2, 4)
def prelu(pick: Pick, x: Tensor) -> Made:
    return nn.PReLU(channels(x))


@unary(2, 3, 4)
def scale(pick: Pick, x: Tensor) -> Made:
    shape = (channels(x), 1, 1) if x.ndim == 4 else (channels(x),)
    return do("scale", lambda m, x: x * m.gamma, gamma=nn.Parameter(torch.ones(shape)))


@unary(2, 3, 4)
def pointwise(pick: Pick, x: Tensor) -> Made:
    return pick.one((nn.ReLU, nn.GELU, nn.Sigmoid, nn.ELU))()


@unary(2, 3, 4)
def in_place(pick: Pick, x: Tensor) -> Made:
    return do("in place", lambda m, x: x.clone().relu_().mul_(1.5).add_(x))


# Channels that move.


@unary(2, 3, 4)
def halves(pick: Pick, x: Tensor) -> Made:
    if channels(x) % 2:
        return None
    ways = {
        "both": lambda m, x: x.chunk(2, axis(x)),
        "glu": lambda m, x: F.glu(x, axis(x)),
        "swapped": lambda m, x: torch.cat(x.chunk(2, axis(x))[::-1], axis(x)),
        "interleaved": lambda m, x: x.movedim(axis(x), -1)[..., ::2].movedim(-1, axis(x)),
        "sliced": lambda m, x: x.narrow(axis(x), 0, channels(x) // 2),
    }
    name = pick.one(ways)
    return do(f"halves {name}", ways[name])


@unary(2, 3, 4)
def literal_split(pick: Pick, x: Tensor) -> Made:
    if channels(x) < 3:
        return None
    at = pick.one(range(1, channels(x)))
    sizes = [at, channels(x) - at]
    return do(f"split {sizes}", lambda m, x: x.split(sizes, axis(x)))


@unary(2, 3, 4)
def literal_slice(pick: Pick, x: Tensor) -> Made:
    at = pick.one(range(1, channels(x) + 1))
    if pick.flag():
        return do(f"first {at}", lambda m, x: x.narrow(axis(x), 0, at))

    return do(f"from {at - 1}", lambda m, x: x.movedim(axis(x), 0)[at - 1 :].movedim(0, axis(x)))


@unary(2, 3, 4)
def written_slice(pick: Pick, x: Tensor) -> Made:
    at = pick.one(range(1, channels(x) + 1))

    def run(m: Any, x: Tensor) -> Tensor:
        y = x.clone()
        part = y.narrow(axis(x), 0, at)
        part += m.layer(x.movedim(axis(x), -1)).movedim(-1, axis(x))
        return y

    return do(f"written {at}", run, layer=nn.Linear(channels(x), at))


@unary(2, 3, 4)
def turned(pick: Pick, x: Tensor) -> Made:
    ways = {
        "flip": lambda m, x: x.flip(axis(x)),
        "roll": lambda m, x: x.roll(1, axis(x)),
        "mirror": lambda m, x: x + x.flip(axis(x)),
        "picked": lambda m, x: x.index_select(axis(x), torch.tensor([0, channels(x) - 1])),
        "repeated": lambda m, x: x.repeat_interleave(2, axis(x)),
    }
    name = pick.one(ways)
    return do(name, ways[name])


@unary(4)
def shuffle(pick: Pick, x: Tensor) -> Made:
    if not divisors(channels(x))[:-1]:
        return None
    n = pick.one(divisors(channels(x))[:-1])
    return do(f"shuffle {n}", lambda m, x: x.unflatten(1, (n, -1)).transpose(1, 2).reshape(x.shape))


@unary(4)
def pixels(pick: Pick, x: Tensor) -> Made:
    if channels(x) % 4 == 0:
        return nn.PixelShuffle(2)
    return nn.PixelUnshuffle(2) if x.shape[-1] % 2 == 0 else None


@unary(4)
def padded(pick: Pick, x: Tensor) -> Made:
    pad = pick.one(((1, 1, 1, 1, 0, 0), (0, 0, 0, 0, 1, 2)))
    return do(f"padded {pad}", lambda m, x: F.pad(x, pad))


@unary(4)
def pooled(pick: Pick, x: Tensor) -> Made:
    if x.shape[-1] < 2:
        return None
    ways = (nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Upsample(scale_factor=2), nn.AdaptiveAvgPool2d(2))
    return pick.one(ways)


# Between images, tokens and vectors.


@unary(4)
def flattened(pick: Pick, x: Tensor) -> Made:
    ways = {
        "tokens": lambda m, x: x.flatten(2).transpose(1, 2),
        "vector": lambda m, x: x.flatten(1),
        "channels last": lambda m, x: x.permute(0, 2, 3, 1).reshape(len(x), -1),
        "mean": lambda m, x: x.mean((2, 3)),
        "rows": lambda m, x: x.transpose(1, 2).flatten(2),
    }
    name = pick.one(ways)
    return do(f"flattened to {name}", ways[name])


@unary(4, mixes=True)
def channels_as_tokens(pick: Pick, x: Tensor) -> Made:
    return do("channels as tokens", lambda m, x: x.flatten(2))


@unary(3)
def image(pick: Pick, x: Tensor) -> Made:
    side = round(x.shape[1] ** 0.5)
    if side * side != x.shape[1]:
        return None
    return do("image", lambda m, x: x.transpose(1, 2).unflatten(2, (side, side)))


@unary(3)
def gathered(pick: Pick, x: Tensor) -> Made:
    ways = {
        "mean": lambda m, x: x.mean(1),
        "first": lambda m, x: x[:, 0],
        "all": lambda m, x: x.flatten(1),
        "largest": lambda m, x: x.max(1).values,
    }
    name = pick.one(ways)
    return do(f"gathered {name}", ways[name])


# Attention.


@unary(3)
def attention(pick: Pick, x: Tensor) -> Made:
    """One fused layer, in several spellings; the number of heads follows or is written out."""
    heads, size = pick.one((2, 3, 4)), pick.one((2, 3))
    count = pick.one((-1, heads))
    way = pick.one(("unbind", "chunk", "neighbours", "torch"))

    def run(m: Any, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        qkv = m.qkv(x)
        if way == "unbind":
            parts = qkv.view(batch, tokens, 3, count, size).permute(2, 0, 3, 1, 4).unbind(0)
        elif way == "neighbours":  # each head's query, key and value stand side by side
            parts = qkv.view(batch, tokens, count, 3 * size).transpose(1, 2).chunk(3, -1)
        else:
            parts = [p.view(batch, tokens, count, size).transpose(1, 2) for p in qkv.chunk(3, -1)]
        query, key, value = parts
        if way == "torch":
            mixed = F.scaled_dot_product_attention(query, key, value)
        else:
            mixed = (query @ key.mT / size**0.5).softmax(-1) @ value
        return m.out(mixed.transpose(1, 2).reshape(batch, tokens, -1))

    layers = {"qkv": nn.Linear(channels(x), 3 * heads * size), "out": nn.Linear(heads * size, 4)}
    return do(f"attention {way} {heads} x {size}, {count}", run, **layers)


@unary(3)
def shared_keys(pick: Pick, x: Tensor) -> Made:
    share, size, wide = pick.one((2, 3)), 2, channels(x)

    def run(m: Any, x: Tensor) -> Tensor:
        parts = [p(x).unflatten(-1, (-1, size)).transpose(1, 2) for p in (m.query, m.key, m.value)]
        key, value = (t.repeat_interleave(share, 1) for t in parts[1:])
        return m.out(
            F.scaled_dot_product_attention(parts[0], key, value).transpose(1, 2).flatten(2)
        )

    layers = {
        "query": nn.Linear(wide, 2 * share * size),
        "key": nn.Linear(wide, 2 * size),
        "value": nn.Linear(wide, 2 * size),
        "out": nn.Linear(2 * share * size, wide),
    }
    return do(f"{share} queries share a key", run, **layers)


@unary(3)
def torch_attention(pick: Pick, x: Tensor) -> Made:
    if not divisors(channels(x)):
        return None
    inner = nn.MultiheadAttention(channels(x), pick.one(divisors(channels(x))), batch_first=True)
    weights = pick.flag()
    return do("mha", lambda m, x: m.inner(x, x, x, need_weights=weights)[0], inner=inner)


@unary(3)
def non_local(pick: Pick, x: Tensor) -> Made:
    layers = {n: nn.Linear(channels(x), k) for n, k in (("q", 3), ("k", 3), ("v", 5))}
    return do("non local", lambda m, x: (m.q(x) @ m.k(x).mT).softmax(-1) @ m.v(x), **layers)


# Functions that mix channels without a weight.


@unary(2, 3, 4, mixes=True)
def mixed(pick: Pick, x: Tensor) -> Made:
    ways = {
        "softmax": lambda m, x: x.softmax(axis(x)),
        "mean": lambda m, x: x * x.mean(axis(x), keepdim=True),
        "largest": lambda m, x: x - x.amax(axis(x), keepdim=True),
        "length": lambda m, x: F.normalize(x, dim=axis(x)),
        "standard": lambda m, x: (x - x.mean(axis(x), True)) / (x.std(axis(x), keepdim=True) + 1),
        "sum": lambda m, x: torch.sigmoid(x.sum(axis(x), keepdim=True)) * x,
    }
    name = pick.one(ways)
    return do(f"mixed {name}", ways[name])


@unary(2)
def outer(pick: Pick, x: Tensor) -> Made:
    if channels(x) > 6:
        return None
    return do("outer", lambda m, x: (x[:, :, None] * torch.tanh(x)[:, None, :]).flatten(1))
