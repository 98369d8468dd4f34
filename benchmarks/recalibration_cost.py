"""What recalibration costs: CPU seconds next to a forward pass and to scoring, and memory.

ResNet-56 for 32 x 32 images, cut to half its MACs by l2; weights and images are random, since the
cost does not depend on them:

    python -m benchmarks.recalibration_cost
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import obc
from benchmarks._curves import loss
from benchmarks._harness import peak_memory, race, save, show
from obc.models import resnet56

IMAGES, BATCH = 512, 64
ROWS, ROW = 5, 128  # a tenth of the paper's N = 50 for CIFAR


@torch.no_grad()
def forward(model: nn.Module, batches: list[Tensor]) -> None:
    for batch in batches:
        model(batch)


def passes(pruned: nn.Module, model: nn.Module, batches: list[Tensor]) -> dict[str, float]:
    """How often each network runs over the images."""
    run: Counter[str] = Counter()

    first = next(model.parameters())

    def call(network: nn.Module, batch: Tensor) -> Any:
        whole = next(network.parameters()) is first
        run["original" if whole else "pruned"] += len(batch)
        return network(batch)

    obc.recalibrate(copy.deepcopy(pruned), model, batches, call=call)
    return {name: count / IMAGES for name, count in run.items()}


def bound(pruned: nn.Module, model: nn.Module, batches: list[Tensor]) -> int:
    """Bytes of two activations of both networks, the largest, for all images, and of a Gram."""
    sizes: dict[nn.Module, int] = {}

    def note(network: nn.Module, module: nn.Module, inputs: Any, output: Tensor) -> None:
        sizes[network] = max(sizes.get(network, 0), output.numel() * output.element_size())

    for network in (pruned, model):
        handles = [
            m.register_forward_hook(partial(note, network))
            for m in network.modules()
            if isinstance(m, nn.Conv2d)
        ]
        forward(network, batches[:1])
        for handle in handles:
            handle.remove()
    widths = [m.weight[0].numel() for m in pruned.modules() if isinstance(m, nn.Conv2d)]
    return 2 * sum(sizes.values()) * len(batches) + 8 * max(widths) ** 2


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = resnet56().eval()
    images = torch.randn(ROWS * ROW, 3, 32, 32)
    batches = list(images[:IMAGES].split(BATCH))
    rows = [(x, torch.randint(0, 10, (ROW,))) for x in images.split(ROW)]
    plan = obc.plan(model, images[:1], target="macs=2x", criterion="l2", step=0.03)
    sites, pruned = obc.trace(model, images[:1]), obc.apply(copy.deepcopy(model), plan)
    contenders: dict[str, Callable[[], object]] = {
        "forward pass": partial(forward, model, batches),
        "recalibration": lambda: obc.recalibrate(copy.deepcopy(pruned), model, batches),
        "a tenth of scoring": lambda: obc.score(model, sites, rows, loss, criterion="jacobian"),
    }
    times = {name: time.best for name, time in race(contenders, rounds=2).items()}
    counts = passes(pruned, model, batches)
    grown = peak_memory(lambda: obc.recalibrate(copy.deepcopy(pruned), model, batches))
    limit = bound(pruned, model, batches)
    show(
        f"ResNet-56, {IMAGES} images in batches of {BATCH}; scoring: {10 * ROWS} rows of {ROW}",
        ("", "CPU s", "forward passes"),
        [(n, f"{t:.1f}", f"{t / times['forward pass']:.1f}") for n, t in times.items()],
    )
    show(
        "in recalibration",
        ("", ""),
        [
            *((f"runs of the {n} over the images", f"{c:.2f}") for n, c in counts.items()),
            ("growth of the process, MB", f"{grown / 2**20:.0f}"),
            ("two activations of both networks and a Gram, MB", f"{limit / 2**20:.0f}"),
        ],
    )
    save("recalibration_cost", {"seconds": times, "passes": counts, "grown": grown, "bound": limit})


if __name__ == "__main__":
    main()
