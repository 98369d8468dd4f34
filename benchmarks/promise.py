"""Are promises kept? The drop promised against the drop on a large test set that nothing has seen.

Each cell (network, seed) plans for a quality target, cuts, recalibrates, and evaluates the result
on the untouched test set; then all places of the same run are judged on the promise split, one by
one, for the best that an exhaustive scan would have found. Cells that the result file already has
are not run again.

digits: a small convolutional network learns from 500 images of scikit-learn's digits. The others
are the population: a sample is one of them, drawn with replacement, moved by up to a pixel, with
noise. 1,500 samples to search by, 1,500 to promise by, 20,000 untouched.
cifar: public ResNet-56, CIFAR-10's test images: 3,000 to search by, 3,000 to promise by, 4,000
untouched; a seed draws which.

    python -m benchmarks.promise --seeds 20
    python -m benchmarks.promise --network cifar --cifar FOLDER --weights FOLDER --seeds 1 --rows 4
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import obc
from benchmarks._curves import Batch, digits
from benchmarks._harness import CONSOLE, RESULTS, save, show
from benchmarks._networks import Folders, network
from obc.planning.judgement import Judgement, judge
from obc.planning.quality import Quality
from obc.tasks import Classification

SAMPLES = 512
Case = tuple[nn.Module, Classification, Classification]


def batched(data: Batch, size: int = 100) -> list[Batch]:
    return list(zip(data[0].split(size), data[1].split(size), strict=True))


def drawn(images: Tensor, labels: Tensor, count: int, generator: torch.Generator) -> Batch:
    """Samples of the population: images drawn with replacement, moved by a pixel, with noise."""
    pick = torch.randint(len(images), (count,), generator=generator)
    padded = functional.pad(images[pick], (1, 1, 1, 1), value=-1.0)
    rows, columns = torch.randint(3, (2, count), generator=generator)
    moved = torch.stack(
        [
            image[:, r : r + 8, c : c + 8]
            for image, r, c in zip(padded, rows.tolist(), columns.tolist(), strict=True)
        ]
    )
    return moved + 0.3 * torch.randn(moved.shape, generator=generator), labels[pick]


def small_network(batches: list[Batch], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((1, 16, 1), (16, 32, 2), (32, 32, 2)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(5):
        for inputs, labels in batches:
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    return model.eval()


def digits_case(seed: int) -> Case:
    """A trained network, the task that a user has, and the untouched test set."""
    data = digits(seed)
    images, labels = (torch.cat(parts) for parts in zip(*data, strict=True))
    generator = torch.Generator().manual_seed(1000 + seed)
    training = drawn(images[:500], labels[:500], 4096, generator)
    population = images[500:], labels[500:]
    test = batched(drawn(*population, 3000, generator), 250)
    untouched = batched(drawn(*population, 20000, generator), 1000)
    model = small_network(batched(training, 64), seed)
    task = Classification(batched(training, 256), test, name="digits")
    return model, task, Classification(None, untouched)


def cifar_case(seed: int, folders: Folders) -> Case:
    model, data = network("resnet56_padded", seed, folders, test=10_000)
    images, labels = data.test
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    images, labels = images[order], labels[order]
    test, untouched = (images[:6000], labels[:6000]), (images[6000:], labels[6000:])
    task = Classification(batched(data.train, 64), batched(test), name="CIFAR-10")
    return model, task, Classification(None, batched(untouched))


def cell(case: Case, target: str, options: Any) -> dict[str, Any]:
    """The promise of one run, what became of it, and what a scan of all places finds."""
    model, task, untouched = case
    terms = Quality.parse(target).of(task.metrics)
    settings = {"rows": options.rows, "step": options.step}
    start = time.process_time()
    plan = obc.plan(model, task=task, target=target, samples=SAMPLES, **settings)
    seconds = time.process_time() - start
    assert plan.promise is not None and plan.before is not None and plan.after is not None
    whole = task.evaluate(model, "promise")

    def recalibrated(step: int) -> nn.Module:
        small = obc.apply(copy.deepcopy(model), plan.at(step))
        obc.recalibrate(small, model, task.calibration(), samples=SAMPLES)
        return small

    def judged(step: int) -> Judgement:
        return judge(terms, task, whole, task.evaluate(recalibrated(step), "promise"))

    step = len(plan.history)
    was, now = (untouched.evaluate(m).value for m in (model, recalibrated(step)))
    scanned = range(1, step + len(plan.beyond) + 1, options.scan) if options.scan else ()
    passed = [s for s in scanned if judged(s).bound <= terms.limit]
    best = plan.at(max(passed, default=step)).after
    assert best is not None
    return {
        "target": target,
        "settings": settings,
        "whole": was,
        "promise": plan.promise.model_dump(),
        "drop on the untouched": was - now,
        "broken": was - now > terms.limit,
        "macs": [plan.before.macs, plan.after.macs],
        "best macs of a scan": best.macs if options.scan else None,
        "places evaluated": len(plan.places),
        "places of the run": step + len(plan.beyond),
        "CPU seconds": seconds,
    }


def table(name: str, cells: list[dict[str, Any]]) -> None:
    rows = []
    for seed, c in enumerate(cells):
        scan, (before, after) = c["best macs of a scan"], c["macs"]
        rows.append(
            (
                *(seed, f"{c['whole']:.2f}", f"{c['promise']['estimate']:.2f}"),
                *(f"{c['promise']['bound']:.2f}", f"{c['drop on the untouched']:.2f}"),
                *("broken" if c["broken"] else "kept", f"{before / after:.2f}x"),
                f"{before / scan:.2f}x" if scan else "",
                f"{after / scan:.2f}" if scan else "",
                *(
                    f"{c['places evaluated']}; {c['places of the run']}",
                    f"{c['CPU seconds']:.0f}",
                ),
            )
        )
    broken = sum(c["broken"] for c in cells)
    ratios = [c["macs"][1] / c["best macs of a scan"] for c in cells if c["best macs of a scan"]]
    show(
        f"{name}, {cells[0]['target']}: {broken} of {len(cells)} promises broken",
        ("seed", "whole", "drop", "bound", "untouched", "promise", "MACs", "scan", "cost ÷ scan",
         "evaluations; places", "CPU s"),
        rows,
    )  # fmt: skip
    if ratios:
        middle, near = statistics.median(ratios), sum(r <= 1.1 for r in ratios)
        CONSOLE.print(
            f"cost ÷ best cost of the scan: median {middle:.3f}, largest {max(ratios):.3f}, "
            f"within 10% in {near} of {len(ratios)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="digits", choices=("digits", "cifar"))
    parser.add_argument("--target", default="accuracy-2%")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--step", type=float, default=0.02)
    parser.add_argument("--scan", type=int, default=1, help="judge every so manyth place; 0: none")
    parser.add_argument("--cifar", type=Path)
    parser.add_argument("--weights", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folders = Folders(options.cifar, None, None, options.weights, None)
    path = RESULTS / "promise.json"
    cells: dict[str, Any] = json.loads(path.read_text())["cells"] if path.exists() else {}
    keys = [f"{options.network}|{options.target}|{seed}" for seed in range(options.seeds)]
    for seed, key in enumerate(keys):
        if key not in cells:
            digit = options.network == "digits"
            case = digits_case(seed) if digit else cifar_case(seed, folders)
            cells[key] = cell(case, options.target, options)
            save("promise", {"samples to recalibrate": SAMPLES, "cells": cells})
    table(options.network, [cells[key] for key in keys])


if __name__ == "__main__":
    main()
