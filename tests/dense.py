"""The criteria written out, channel by channel, over gradients that are kept row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from obc import Site, Sites

Loss = Callable[[nn.Module, Any], Tensor]
Rows = list[dict[str, Tensor]]


def gradient_rows(model: nn.Module, batches: list[Any], loss: Loss) -> Rows:
    """One gradient of every parameter for each batch: J, row by row."""
    model.eval()
    named = dict(model.named_parameters())
    rows = []
    for batch in batches:
        grads = torch.autograd.grad(loss(model, batch), list(named.values()), allow_unused=True)
        rows.append(
            {
                n: torch.zeros_like(p) if g is None else g
                for (n, p), g in zip(named.items(), grads, strict=True)
            }
        )
    return rows


def single_samples(batches: list[Any], sizes: list[int]) -> list[Any]:
    """Every sample of every batch as a batch of its own."""
    return [
        tree_map(lambda t, i=i: t[i : i + 1] if isinstance(t, Tensor) and t.ndim else t, batch)
        for batch, size in zip(batches, sizes, strict=True)
        for i in range(size)
    ]


def blocks(site: Site, channel: int) -> list[tuple[str, list[tuple[str, int, Tensor]]]]:
    """The structural parameters of one channel: role, and (parameter, dimension, positions)."""
    found: dict[Any, tuple[str, list[tuple[str, int, Tensor]]]] = {}
    for m in site.members:
        stem = m.param
        for word in ("weight", "bias", "gamma", "beta"):
            if m.role != "in" and stem.endswith(word):
                stem = stem[: -len(word)]
        key = (m.layer, m.role, stem, m.dim if m.role == "in" else None)
        found.setdefault(key, (m.role, []))[1].append((m.name, m.dim, m.index[channel]))
    return list(found.values())


def vector(tensors: dict[str, Tensor], pieces: list[tuple[str, int, Tensor]]) -> list[Tensor]:
    """What a structural parameter owns of these tensors, one flat vector per tensor."""
    return [tensors[n].index_select(dim, at).movedim(dim, 0).reshape(-1) for n, dim, at in pieces]


def scores(
    model: nn.Module,
    sites: Sites,
    rows: Rows,
    measure: Callable[[str, list[Tensor], list[list[Tensor]], list[Tensor]], float | None],
    aggregate: Callable[[list[float]], float] = sum,
) -> dict[str, Tensor]:
    """Scores by a measure(role, w, [g of each row], [w of every channel's like block])."""
    weights = {n: p.detach() for n, p in model.named_parameters()}
    result = {}
    for site in sites:
        own = [blocks(site, c) for c in range(site.size)]
        values = []
        for channel in own:
            members = []
            for i, (role, pieces) in enumerate(channel):
                everyone = [torch.cat(vector(weights, other[i][1])) for other in own]
                g = [vector(row, pieces) for row in rows]
                value = measure(role, vector(weights, pieces), g, everyone)
                if value is not None:
                    members.append(value)
            values.append(aggregate(members) if members else float("inf"))
        result[site.name] = torch.tensor(values, dtype=torch.float64)
    return result


def dot(w: list[Tensor], g: list[Tensor]) -> float:
    return sum(float((a * b).sum()) for a, b in zip(w, g, strict=True))


def jacobian(role: str, w: list[Tensor], g: list[list[Tensor]], _: Any) -> float:
    return sum(dot(w, row) ** 2 for row in g)


def jacobian_expected(batches: int) -> Callable[..., float]:
    """The sum over batches of (mean over a batch)², on average: of rows that are single samples.

    The mean of s_i s_j over all pairs of different samples is unbiased for the square of the mean.
    """

    def measure(role: str, w: list[Tensor], g: list[list[Tensor]], _: Any) -> float:
        s = torch.tensor([dot(w, row) for row in g], dtype=torch.float64)
        pairs = s[:, None] * s
        square = (pairs.sum() - pairs.trace()) / (len(s) * (len(s) - 1))
        return float(batches * (square + s.var() * batches / len(s)))

    return measure


def jacobian_diagonal_norm(role: str, w: list[Tensor], g: list[list[Tensor]], _: Any) -> float:
    if role != "norm":
        return jacobian(role, w, g, _)
    return sum(dot([a], [b]) ** 2 for row in g for a, b in zip(w, row, strict=True))


def taylor(role: str, w: list[Tensor], g: list[list[Tensor]], _: Any) -> float:
    return sum(float((a * b).square().sum()) for row in g for a, b in zip(w, row, strict=True))


# With single samples as rows, w_i^2 h_ii is the same sum.
hessian = taylor


def l1(role: str, w: list[Tensor], g: Any, _: Any) -> float:
    return sum(float(a.abs().sum()) for a in w)


def l2(role: str, w: list[Tensor], g: Any, _: Any) -> float:
    return sum(float(a.square().sum()) for a in w)


def fpgm(role: str, w: list[Tensor], g: Any, everyone: list[Tensor]) -> float:
    mine = torch.cat(w)
    return sum(float((mine - other).square().sum().sqrt()) for other in everyone)


def whc(role: str, w: list[Tensor], g: Any, everyone: list[Tensor]) -> float:
    mine = torch.cat(w)
    total = 0.0
    for other in everyone:
        if torch.equal(mine, other):
            continue  # itself
        cosine = float(mine @ other / (mine.norm() * other.norm()))
        total += float(other.norm()) * (1 - abs(cosine))
    return float(mine.norm()) * total


def bn_scale(role: str, w: list[Tensor], g: Any, _: Any) -> float | None:
    return float(w[0].abs().sum()) if role == "norm" else None


def jacobian_group(model: nn.Module, sites: Sites, rows: Rows) -> dict[str, Tensor]:
    """The whole group as one block: the square of the sum over members."""
    weights = {n: p.detach() for n, p in model.named_parameters()}
    result = {}
    for site in sites:
        values = []
        for c in range(site.size):
            pieces = [p for _, p in blocks(site, c)]
            sums = [sum(dot(vector(weights, p), vector(r, p)) for p in pieces) for r in rows]
            values.append(sum(s * s for s in sums))
        result[site.name] = torch.tensor(values, dtype=torch.float64)
    return result
