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
from functools import lru_cache
from pathlib import Path

import torch
from torch import nn

from benchmarks._curves import Data, accuracy, points
from benchmarks._harness import CONSOLE, Cells
from benchmarks._networks import IMAGES, Folders, network
from benchmarks.study import tuning
from benchmarks.study.studies import STUDIES, Study

FOLDERS = ("cifar", "fashion", "imagenet", "weights", "mobilenet")


def run(name: str, study: Study, folders: Folders, options: argparse.Namespace) -> None:
    """All cells of a study that are not there yet, or not yet recalibrated."""
    names = ("network", "rows", "batch", "step", "samples", "speedups", "refit", "test")
    cells = Cells(f"study_{name}", {n: getattr(study, n) for n in names})

    @lru_cache(1)
    def ready(seed: int, images: int) -> tuple[nn.Module, Data]:
        return network(study.network, seed, folders, images, study.test)

    samples = 0 if options.cut else study.samples
    for variant, seed in study.keys(options.seeds):
        key = f"{variant}|{seed}"
        there = cells.results.get(key)
        done = there is not None and (options.cut or "recalibrated" in str(there["points"]))
        if done or (options.only and variant not in options.only):
            continue
        settings = {"rows": study.rows, "step": study.step, **study.variants[variant], "seed": seed}
        # As many images as one step takes; the first of them are the same for all variants.
        model, data = ready(seed, max(IMAGES, settings["rows"] * study.batch))
        resumed = False
        if options.scratch:  # a run that was planned before is not planned again
            settings["resume"] = options.scratch / f"{name} {key}"
            resumed = settings["resume"].exists()
        cell = points(
            model, data, data.batches(study.batch), settings, study.speedups, samples, study.refit
        )
        whole = [c["whole"] for k, c in cells.results.items() if k.endswith(f"|{seed}")]
        about = {"whole": whole[0] if whole else accuracy(model, data.test)}
        if resumed:  # its seconds are not those of the whole planning
            cell["planning seconds"] = there["planning seconds"] if there else None
        cells.add(key, {**about, "settings": study.variants[variant], **cell})
        CONSOLE.print(key, [(p["cut"], p.get("recalibrated")) for p in cell["points"]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*STUDIES, *tuning.TUNINGS, "time", []])
    parser.add_argument("--page", action="store_true", help="write docs/results.md")
    parser.add_argument("--seeds", type=int, help="instead of the study's own number")
    parser.add_argument("--cut", action="store_true", help="leave recalibration for later")
    parser.add_argument("--scratch", type=Path, help="where planning runs are kept")
    parser.add_argument("--only", nargs="+", default=[], help="these variants")
    for name in FOLDERS:
        parser.add_argument(f"--{name}", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folders = Folders(*(getattr(options, n) for n in FOLDERS))
    for name in options.names:
        if name == "time":
            from benchmarks.study import timing  # loads torch-pruning

            timing.run()
        elif name in tuning.TUNINGS:
            tuning.run(name, folders, options.seeds, options.scratch)
        else:
            run(name, STUDIES[name], folders, options)
    if options.page:
        from benchmarks.study import page  # loads matplotlib

        page.write()


if __name__ == "__main__":
    main()
