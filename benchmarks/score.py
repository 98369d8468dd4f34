"""What scoring costs, beside a plain forward and backward pass on the same batches."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import obc
from benchmarks._harness import peak_memory, race, save, show
from obc.criteria.structure import parts_of
from obc.models import resnet56, vgg19, vit_small

BATCH = 128


def loss(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def batches(count: int, image: int, size: int = BATCH) -> list[Any]:
    return [
        (torch.randn(size, 3, image, image), torch.randint(0, 10, (size,))) for _ in range(count)
    ]


def plain(model: nn.Module, data: list[Any]) -> None:
    """A forward and backward pass for every batch, and nothing else."""
    weights = list(model.parameters())
    for batch in data:
        torch.autograd.grad(loss(model, batch), weights)


def published(model: nn.Module, sites: obc.Sites, data: list[Any]) -> dict[str, Tensor]:
    """The criterion as published code computes it: J by concatenation, then a product of it."""
    rows: dict[str, list[Tensor]] = {n: [] for n, _ in model.named_parameters()}
    for batch in data:
        model.zero_grad()
        loss(model, batch).backward()
        for name, p in model.named_parameters():
            rows[name].append(p.grad.detach().clone()[None])  # type: ignore[union-attr]
    jacobian = {n: torch.cat(r) for n, r in rows.items()}
    weights = {n: p.detach() for n, p in model.named_parameters()}
    scores, count = {}, len(data)
    for site in sites:
        total = torch.zeros(site.size)
        for part in parts_of(site):
            w = part.rows(weights)
            j = torch.stack(
                [part.rows({n: r[i] for n, r in jacobian.items()}) for i in range(count)]
            )
            total += torch.einsum("nsd,sd->ns", j, w).square().sum(0)
        scores[site.name] = total
    model.zero_grad()
    return scores


def encoder() -> nn.Module:
    """As wide as ViT-B/16, with fewer layers: the ratio does not depend on their number."""
    return vit_small(image=64, patch=16, dim=768, depth=2, heads=12, classes=10)


MODELS: dict[str, tuple[Callable[[], nn.Module], int, float]] = {
    "ResNet-56": (resnet56, 32, 0.75),
    "VGG19": (lambda: vgg19(num_classes=10), 32, 0.65),
    "ViT-B/16-shaped encoder": (encoder, 64, 0.75),
}


def ratios(rows: int, rounds: int) -> list[dict[str, Any]]:
    """JC, Taylor and Hessian over a plain pass, interleaved."""
    found = []
    for name, (build, image, bar) in MODELS.items():
        model = build().eval()
        data = batches(rows, image)
        sites = obc.trace(model, data[0][0][:1])
        contenders: dict[str, Callable[[], object]] = {
            "plain": lambda m=model, d=data: plain(m, d),  # type: ignore[misc]
            "jacobian": lambda m=model, s=sites, d=data: obc.score(m, s, d, loss),  # type: ignore[misc]
        }
        if name == "ResNet-56":
            contenders["hessian"] = (
                lambda m=model, s=sites, d=data: obc.score(  # type: ignore[misc]
                    m, s, d[:2], loss, criterion="hessian"
                )
            )
            contenders["plain, 2 batches"] = lambda m=model, d=data: plain(m, d[:2])  # type: ignore[misc]
        if name == "VGG19":
            contenders["published"] = lambda m=model, s=sites, d=data: published(m, s, d)  # type: ignore[misc]
        times = race(contenders, rounds, seconds=400)
        best = {k: t.best for k, t in times.items()}
        found.append(_row(f"JC ÷ plain, {name}", best["jacobian"] / best["plain"], bar))
        if "hessian" in best:
            ratio = best["hessian"] / best["plain, 2 batches"]
            found.append(_row(f"hessian ÷ plain, {name}", ratio, 4.0))
        if "published" in best:
            ratio = best["jacobian"] / best["published"]
            found.append(_row(f"JC ÷ published form, {name}", ratio, 0.6))
    return found


def memory() -> list[dict[str, Any]]:
    """Peak memory of scoring, one thread, each in a process of its own."""
    torch.set_num_threads(1)
    model = vgg19(num_classes=10).eval()
    sites = obc.trace(model, torch.zeros(1, 3, 32, 32))
    # With small batches the allocator's own leftovers would be a part of what is measured.
    one = batches(1, 32)
    own = [
        peak_memory(lambda n=n: obc.score(model, sites, one * n, loss))  # type: ignore[misc]
        for n in (1, 50)
    ]
    small = batches(50, 32, 16)
    ours = peak_memory(lambda: obc.score(model, sites, small, loss))
    theirs = peak_memory(lambda: published(model, sites, small))
    return [
        _row("peak memory, N = 50 ÷ N = 1, VGG19", own[1] / own[0], 1.02),
        _row("peak memory, JC ÷ published form, N = 50 of 16, VGG19", ours / theirs, 0.1),
    ]


def _row(figure: str, value: float, bar: float) -> dict[str, Any]:
    return {"figure": figure, "value": round(value, 3), "bar": bar, "reached": value <= bar}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10, help="batches of 128 per scoring")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(0)
    found = memory()
    torch.set_num_threads(options.threads)
    found = ratios(options.rows, options.rounds) + found
    show(
        f"Scoring, batch {BATCH}, float32, {options.threads} threads, N = {options.rows}",
        ("figure", "measured", "bar", "reached"),
        [
            (f["figure"], f["value"], f"≤ {f['bar']}", "yes" if f["reached"] else "no")
            for f in found
        ],
    )
    save("score", {"rows": options.rows, "figures": found})


if __name__ == "__main__":
    main()
