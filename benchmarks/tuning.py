"""What the training loop costs beside a bare PyTorch loop, and images per second of each form."""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import obc
from benchmarks._harness import race, save, show
from obc.data import Loaded
from obc.models import resnet20, vgg19
from obc.tuning.optimizing import optimizer_of, schedule_of
from tests.inserted import apply_inserted

BATCH = 128
MODELS: dict[str, Callable[[], nn.Module]] = {
    "ResNet-20": resnet20,
    "VGG19, quarter width": lambda: vgg19(10, width=16),
}


def data(batches: int) -> Loaded:
    pixels = torch.randint(0, 256, (BATCH * batches, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(0, 10, (len(pixels),))
    return Loaded(pixels, labels, "0123456789", [0.5] * 3, [0.25] * 3)


def bare(model: nn.Module, images: Loaded, recipe: obc.Recipe) -> None:
    """The same steps, without checkpoints, checks, tracking or processes."""
    model.train()
    optimizer = optimizer_of(model, recipe)
    steps = images.count(BATCH)
    schedule = schedule_of(optimizer, recipe, steps)
    for epoch in range(recipe.epochs):
        for x, y in images.train(BATCH, epoch=epoch):
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()


def tuned(model: nn.Module, images: Loaded, recipe: obc.Recipe) -> None:
    with tempfile.TemporaryDirectory() as folder:
        obc.finetune(model, images, None, recipe, out=Path(folder) / "run")


def overhead(batches: int, rounds: int) -> list[dict[str, Any]]:
    """CPU time of one epoch by `obc.finetune` over that of a bare loop."""
    images, recipe = data(batches), obc.Recipe(lr=0.01, epochs=1, batch_size=BATCH)
    found = []
    for name, build in MODELS.items():
        model = build()
        tuned(copy.deepcopy(model), data(1), recipe)  # what is imported and built once
        times = race(
            {
                "bare": lambda m=model: bare(copy.deepcopy(m), images, recipe),  # type: ignore[misc]
                "obc": lambda m=model: tuned(copy.deepcopy(m), images, recipe),  # type: ignore[misc]
            },
            rounds,
            seconds=600,
        )
        ratio = times["obc"].best / times["bare"].best
        found.append({"model": name, "bare": times["bare"], "obc": times["obc"], "ratio": ratio})
    return found


def forms(batches: int, rounds: int) -> list[dict[str, Any]]:
    """Images per second of training at half of every site: naive, EP folded, EP inserted."""
    images, recipe = data(batches), obc.Recipe(lr=0.01, epochs=1, batch_size=BATCH)
    found = []
    for name, build in MODELS.items():
        model = build().eval()
        sites = obc.trace(model, torch.zeros(1, 3, 32, 32))
        kept = {s.name: list(range(s.size))[::2] for s in sites}
        plan = obc.Plan.from_kept(sites, kept)
        contenders: dict[str, Callable[[], object]] = {}
        for form, cut in FORMS.items():
            pruned = cut(copy.deepcopy(model), plan)
            contenders[form] = lambda m=pruned: bare(copy.deepcopy(m), images, recipe)  # type: ignore[misc]
        times = race(contenders, rounds, seconds=600)
        rates = {form: len(images) / t.best for form, t in times.items()}
        found.append({"model": name, "images per CPU second": rates})
    return found


FORMS: dict[str, Callable[[nn.Module, obc.Plan], nn.Module]] = {
    "naive": obc.apply,
    "EP folded": partial(obc.apply, equivalent=True),
    "EP inserted": apply_inserted,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=16, help="of an epoch")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loops = overhead(given.batches, given.rounds)
    show(
        f"One epoch of {given.batches} batches of {BATCH}, CPU seconds",
        ["model", "bare loop", "obc.finetune", "ratio", "goal"],
        [
            [r["model"], *(f"{r[k].best:.2f}" for k in ("bare", "obc")), f"{r['ratio']:.3f}", 1.05]
            for r in loops
        ],
    )
    speeds = forms(max(2, given.batches // 4), given.rounds)
    show(
        "Training at half of every site, images per CPU second",
        ["model", *FORMS],
        [[r["model"], *(f"{r['images per CPU second'][f]:.0f}" for f in FORMS)] for r in speeds],
    )
    save("tuning", {"overhead": loops, "forms": speeds})


if __name__ == "__main__":
    main()
