"""The cells of the study, and the page that shows them.

    python -m benchmarks.study resnet20 --cifar FOLDER --weights FOLDER
    python -m benchmarks.study tuning --cifar FOLDER --weights FOLDER
    python -m benchmarks.study time
    python -m benchmarks.study --page

Each cell is written to `benchmarks/results/study_NAME.json` as it is finished, with command and
commit; cells that are there are not run again. `--page` writes the generated parts of
`docs/results.md`, and its figures, from these files.
"""

from __future__ import annotations

import argparse
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import nn

from benchmarks._curves import Data, accuracy, points
from benchmarks._harness import CONSOLE, Cells
from benchmarks._networks import Folders, network
from benchmarks.study import page, timing, tuning
from benchmarks.study.studies import STUDIES, Study

FOLDERS = ("cifar", "fashion", "imagenet", "weights", "mobilenet")


def run(name: str, study: Study, folders: Folders, seeds: int | None, only: list[str]) -> None:
    """All cells of a study that are not there yet."""
    names = ("network", "rows", "batch", "step", "samples", "speedups", "refit")
    cells = Cells(f"study_{name}", {n: getattr(study, n) for n in names})
    ready = lru_cache(1)(partial(_ready, study.network, folders))  # seed by seed
    for variant, seed in study.keys(seeds):
        key = f"{variant}|{seed}"
        if key in cells.results or (only and variant not in only):
            continue
        model, data, whole = ready(seed)
        settings = {"rows": study.rows, "step": study.step, **study.variants[variant], "seed": seed}
        batches = data.batches(study.batch)
        cell = points(
            model, data, batches, settings, study.speedups, study.samples, refit=study.refit
        )
        cells.add(key, {"whole": whole, "settings": study.variants[variant], **cell})
        CONSOLE.print(key, [(p["cut"], p.get("recalibrated")) for p in cell["points"]])


def _ready(name: str, folders: Folders, seed: int) -> tuple[nn.Module, Data, float]:
    """A network, its data and its accuracy before anything is removed."""
    model, data = network(name, seed, folders)
    return model, data, accuracy(model, data.test)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*STUDIES, "tuning", "time", []])
    parser.add_argument("--page", action="store_true", help="write docs/results.md")
    parser.add_argument("--seeds", type=int, help="instead of the study's own number")
    parser.add_argument("--only", nargs="+", default=[], help="these variants")
    for name in FOLDERS:
        parser.add_argument(f"--{name}", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folders = Folders(*(getattr(options, n) for n in FOLDERS))
    for name in options.names:
        if name == "time":
            timing.run()
        elif name == "tuning":
            tuning.run(folders, options.seeds)
        else:
            run(name, STUDIES[name], folders, options.seeds, options.only)
    if options.page:
        page.write()


if __name__ == "__main__":
    main()
