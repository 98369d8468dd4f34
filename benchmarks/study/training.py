"""The quarter-width VGG16 of the study, trained once on CIFAR-10; its weights stay outside.

    python -m benchmarks.study.training --cifar FOLDER --weights FOLDER

writes `vgg16_quarter_cifar10.safetensors` into the folder of weights, and recipe, accuracy and
SHA-256 of that file to `benchmarks/results/study_training.json`. A run that is cut short goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

import obc
from benchmarks._harness import save
from obc.data import load
from obc.models import vgg16

FILE = "vgg16_quarter_cifar10.safetensors"
RECIPE = obc.Recipe(
    **{"lr": 0.1, "weight_decay": 5e-4, "schedule": "cosine", "warmup_epochs": 1},
    **{"warmup_factor": 0.1, "epochs": 8, "batch_size": 128, "crop": 4, "flip": True},
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cifar", type=Path, required=True, help="the binary version of CIFAR-10")
    parser.add_argument("--weights", type=Path, required=True, help="where weights are kept")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = vgg16(10, width=16).to(memory_format=torch.channels_last)  # a quarter faster
    start = time.process_time()
    task = obc.tasks.Classification.of(load("cifar10", options.cifar))
    tuned = obc.finetune(model, task, RECIPE, out=options.weights / "vgg16_quarter_run")
    path = options.weights / FILE
    save_file({name: t.contiguous() for name, t in model.state_dict().items()}, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    about = {"recipe": RECIPE.model_dump(exclude_defaults=True), "seed": RECIPE.seed}
    cost = {"seconds since the last start": time.process_time() - start, "epochs": tuned.history}
    save("study_training", {"file": FILE, "sha256": digest, **about, **cost})


if __name__ == "__main__":
    main()
