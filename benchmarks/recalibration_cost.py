"""What recalibration costs: CPU seconds next to a forward pass and to scoring, and memory.

ResNet-56 for 32 x 32 images, cut to half its MACs by l2; weights and images are random, since the
cost does not depend on them:

    python -m benchmarks.recalibration_cost
"""

from __future__ import annotations

import copy
import resource
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import obc
from benchmarks._curves import loss
from benchmarks._harness import save, show
from obc.models import resnet56

IMAGES, BATCH = 512, 64
ROWS, ROW = 5, 128  # a tenth of the paper's N = 50 for CIFAR


@torch.no_grad()
def forward(model: nn.Module, batches: list[Tensor]) -> None:
    for batch in batches:
        model(batch)


def seconds(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def bound(pruned: nn.Module, model: nn.Module, batch: Tensor) -> int:
    """Bytes of two activations of both networks, the largest, for all images, and of a Gram."""
    sizes: dict[nn.Module, int] = {}

    def note(network: nn.Module, module: nn.Module, inputs: Any, output: Tensor) -> None:
        sizes[network] = max(sizes.get(network, 0), output[0].numel() * output.element_size())

    convolutions = [
        (n, m) for n in (pruned, model) for m in n.modules() if isinstance(m, nn.Conv2d)
    ]
    handles = [m.register_forward_hook(partial(note, n)) for n, m in convolutions]
    forward(pruned, [batch])
    forward(model, [batch])
    for handle in handles:
        handle.remove()
    width = max(m.weight[0].numel() for n, m in convolutions if n is pruned)
    return 2 * sum(sizes.values()) * IMAGES + 8 * width**2


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = resnet56().eval()
    images = torch.randn(ROWS * ROW, 3, 32, 32)
    batches = list(images[:IMAGES].split(BATCH))
    rows = [(x, torch.randint(0, 10, (ROW,))) for x in images.split(ROW)]
    plan = obc.plan(model, images[:1], target="macs=2x", criterion="l2", step=0.03)
    sites, pruned = obc.trace(model, images[:1]), obc.apply(copy.deepcopy(model), plan)
    limit = bound(pruned, model, batches[0])
    first, run = next(model.parameters()), Counter[str]()

    def call(network: nn.Module, batch: Tensor) -> Any:
        run["original" if next(network.parameters()) is first else "pruned"] += len(batch)
        return network(batch)

    times = {"forward pass": seconds(partial(forward, model, batches))}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times["recalibration"] = seconds(lambda: obc.recalibrate(pruned, model, batches, call=call))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    times["a tenth of scoring"] = seconds(lambda: obc.score(model, sites, rows, loss))
    passes = {name: count / IMAGES for name, count in run.items()}
    show(
        f"ResNet-56, {IMAGES} images in batches of {BATCH}; scoring: {10 * ROWS} rows of {ROW}",
        ("", "CPU s", "forward passes"),
        [(n, f"{t:.1f}", f"{t / times['forward pass']:.1f}") for n, t in times.items()],
    )
    show(
        "in recalibration",
        ("", ""),
        [
            *((f"runs of the {n} network over the images", f"{c:.2f}") for n, c in passes.items()),
            ("growth of the process, MB", f"{grown / 2**20:.0f}"),
            ("two activations of both networks and a Gram, MB", f"{limit / 2**20:.0f}"),
        ],
    )
    save("recalibration_cost", {"seconds": times, "passes": passes, "grown": grown, "bound": limit})


if __name__ == "__main__":
    main()
