"""What recalibration costs: CPU seconds next to a forward pass and to scoring, and memory.

ResNet-56 for 32 x 32 images, cut to half its MACs by l2; weights and images are random, since the
cost does not depend on them. Memory is the growth of a process of its own, once with an allocator
that gives back what is freed, once as it is:

    python -m benchmarks.recalibration_cost
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import obc
from benchmarks._curves import loss
from benchmarks._harness import peak_memory, save, show
from obc.costs.memory import peak_bytes
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


def bound(pruned: nn.Module, model: nn.Module, images: Tensor) -> int:
    """Bytes that both networks hold at most in a forward pass over all images, and of a Gram."""
    held = sum(peak_bytes(n, images) - state_bytes(n) for n in (pruned, model))
    widths = [m.weight[0].numel() for m in pruned.modules() if isinstance(m, nn.Conv2d)]
    return held + 8 * max(widths) ** 2


def state_bytes(model: nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))


def networks() -> tuple[nn.Module, nn.Module, Tensor]:
    """The original, the pruned network, and the images."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = resnet56().eval()
    images = torch.randn(ROWS * ROW, 3, 32, 32)
    plan = obc.plan(model, images[:1], target="macs=2x", criterion="l2", step=0.03)
    return model, obc.apply(copy.deepcopy(model), plan), images


def growth() -> int:
    """Bytes by which recalibration raises the peak of a process."""
    model, pruned, images = networks()
    batches = list(images[:IMAGES].split(BATCH))
    for network in (model, pruned):
        forward(network, batches[:1])
    return peak_memory(lambda: obc.recalibrate(pruned, model, batches))


def grown(**environment: str) -> int:
    """`growth` of a new process with these variables set."""
    command = [sys.executable, "-c", f"from {__spec__.name} import growth; print(growth())"]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, check=True)
    return int(done.stdout)


def main() -> None:
    model, pruned, images = networks()
    batches = list(images[:IMAGES].split(BATCH))
    rows = [(x, torch.randint(0, 10, (ROW,))) for x in images.split(ROW)]
    sites = obc.trace(model, images[:1])
    first, run = next(model.parameters()), Counter[str]()

    def call(network: nn.Module, batch: Tensor) -> Any:
        run["original" if next(network.parameters()) is first else "pruned"] += len(batch)
        return network(batch)

    times = {"forward pass": seconds(partial(forward, model, batches))}
    times["recalibration"] = seconds(lambda: obc.recalibrate(pruned, model, batches, call=call))
    times["a tenth of scoring"] = seconds(lambda: obc.score(model, sites, rows, loss))
    memory = {
        "two forward passes and a Gram": bound(pruned, model, images[:IMAGES]),
        "recalibration": grown(MALLOC_MMAP_THRESHOLD_="262144"),
        "recalibration, freed memory kept by malloc": grown(),
    }
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
            *((f"MB: {n}", f"{size / 2**20:.0f}") for n, size in memory.items()),
        ],
    )
    save("recalibration_cost", {"seconds": times, "passes": passes, "bytes": memory})


if __name__ == "__main__":
    main()
