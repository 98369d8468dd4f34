"""Networks that the study wants and nobody hands out, trained once; their weights stay outside.

    python -m benchmarks.study.training vgg16_quarter --cifar FOLDER --weights FOLDER

writes `vgg16_quarter_cifar10.safetensors` into the folder of weights, and recipe, accuracy and
SHA-256 of that file to `benchmarks/results/study_training.json`. A run that is cut short goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import obc
from benchmarks._harness import Cells
from benchmarks._networks import CIFAR
from obc.data import load

SHARED: dict[str, Any] = {"schedule": "cosine", "batch_size": 128, "crop": 4, "flip": True}
RECIPES = {
    "vgg16_quarter": obc.Recipe(
        **SHARED,
        **{"lr": 0.1, "weight_decay": 5e-4, "warmup_epochs": 1, "warmup_factor": 0.1, "epochs": 8},
    ),
    "vit_cifar": obc.Recipe(
        **SHARED,
        **{"optimizer": "adamw", "lr": 2e-3, "weight_decay": 0.05, "epochs": 12},
        **{"warmup_epochs": 1, "warmup_factor": 0.05},
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", choices=list(RECIPES))
    parser.add_argument("--cifar", type=Path, required=True, help="the binary version of CIFAR-10")
    parser.add_argument("--weights", type=Path, required=True, help="where weights are kept")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    (build, name), recipe = CIFAR[options.network], RECIPES[options.network]
    model = build().to(memory_format=torch.channels_last)  # a quarter faster
    start = time.process_time()
    task = obc.tasks.Classification.of(load("cifar10", options.cifar))
    tuned = obc.finetune(model, task, recipe, out=options.weights / f"{options.network}_run")
    path = options.weights / f"{name}.safetensors"
    save_file({name: t.contiguous() for name, t in model.state_dict().items()}, path)
    about = {
        "file": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "recipe": recipe.model_dump(mode="json", exclude_defaults=True),
        "seed": recipe.seed,
        "seconds since the last start": time.process_time() - start,
        "epochs": tuned.history,
    }
    Cells("study_training", {}).add(options.network, about)


if __name__ == "__main__":
    main()
