"""`obc demo`: the main job on embedded data, from nothing, in a few minutes."""

from __future__ import annotations

import copy
import importlib.util
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import nn

import obc
from obc.cli import recording
from obc.cli.arguments import ELSEWHERE, Seed
from obc.cli.compare import comparison_table
from obc.cli.inputs import example_of, model_of
from obc.cli.measure import Measured, measured, milliseconds, models_table, plain
from obc.cli.output import Output, Result
from obc.disk.claim import claimed
from obc.experiments import comparison as compare
from obc.reporting import fill
from obc.tasks import resolve
from obc.tasks.recalibration import recalibrate_for

DENSE = obc.Recipe(
    lr=0.1, weight_decay=5e-4, schedule="cosine", epochs=8, batch_size=64, warmup_epochs=1
)
TUNING = "resnet20-digits"
TARGETS = {"2x": "macs=2x", "4x": "macs=4x"}
CRITERIA = ("random", "l1", "taylor", "jacobian")
BUDGETS = ("macs=80%", "macs=60%", "macs=50%", "macs=40%", "macs=25%")
ROWS, STEP, BATCH = 10, 0.02, 64


def demo(
    out: Output,
    folder: Annotated[
        Path, typer.Option("--out", help="A folder for the demo.", metavar="DIR")
    ] = Path("runs/demo"),
    seed: Seed = 0,
) -> Result:
    """Train a small ResNet on digits, compare criteria, prune, recalibrate, tune, export, report.

    Takes two minutes or so, and no download, GPU or display. Stopped, it goes on.

    Example: obc demo
    """
    start, used = time.monotonic(), time.process_time()
    torch.set_num_threads(1)  # images of 8 x 8 are too small to be shared by two
    with claimed(folder, {"command": "demo", "seed": seed}, advice=ELSEWHERE):
        run = _Demo(out, folder, seed)
        run.train()
        run.compare()
        run.prune()
        run.tune()
        run.export()
        result = run.finish()
    took = {"seconds": time.monotonic() - start, "CPU seconds": time.process_time() - used}
    out.say(f"{took['seconds']:.0f} s, {took['CPU seconds']:.0f} s of CPU time")
    return {**result, **took}


@dataclass
class _Demo:
    out: Output
    folder: Path
    seed: int
    rows: list[Measured] = field(default_factory=list)
    models: list[nn.Module] = field(default_factory=list)
    checks: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.task = resolve("digits")
        self.model = model_of("resnet20", self.task, seed=self.seed)
        self.example = example_of(self.model, self.task)
        self.images = self.task.inputs(next(iter(self.task.calibration(BATCH))))
        title = "ResNet-20 on digits: the demo"
        self.record = recording.begin(title, self.model, self.task, self.seed)

    def train(self) -> None:
        with self.out.doing("training a ResNet-20 on 1,437 images"):
            recipe = DENSE.changed(seed=self.seed)
            place = self.folder / "training"
            obc.finetune(self.model, self.task, recipe, out=place)
        obc.save(self.model, self.folder / "dense")
        self._measure("whole", self.model, self.folder / "dense")
        sites = obc.trace(self.model, self.example)
        self.out.say(
            f"trained: {self.rows[0].evaluation}\n"
            f"traced: {len(sites)} sites with {sum(s.size for s in sites)} channels; "
            f"frozen: {'; '.join(map(str, sites.frozen))}"
        )

    def compare(self) -> None:
        """A few criteria at the same budgets, without tuning."""
        experiment = compare.Comparison(
            folder=self.folder / "compare",
            task=self.task,
            targets=BUDGETS,
            settings={"rows": ROWS, "step": STEP},
            batch_size=BATCH,
        )
        for variant in compare.criteria(CRITERIA):
            with self.out.doing(f"pruning by {variant.name}"):
                cell = experiment.cell(self.model, variant, self.seed)
            self.record.comparison.append(compare.curve([cell]))
        curves, metric = self.record.comparison, self.record.metric
        self.out.say(comparison_table("Pruned without tuning", cell, curves, metric))

    def prune(self) -> None:
        """One run of the Jacobian Criterion, a plan for each target; cut, then recalibrated."""
        with self.out.doing("planning by the Jacobian Criterion"):
            plans = obc.plan(
                self.model,
                self.example,
                self.task.calibration(BATCH),
                self.task.loss,
                target=list(TARGETS.values()),
                rows=ROWS,
                step=STEP,
                seed=self.seed,
                resume=self.folder / "planning",
            )
        self.plans = dict(zip(TARGETS, plans, strict=True))
        seen = {0: self.rows[0]}
        for name, plan in self.plans.items():
            pruned = copy.deepcopy(self.model)
            obc.apply(pruned, plan)
            error = obc.verify(self.model, pruned, plan, self.example)
            self.checks[f"{name}: the cut model is the masked original"] = f"to {error:.0e}"
            seen[len(plan.history)] = self._measure(f"{name}, not tuned", pruned)
            with self.out.doing(f"recalibrating at {name}"):
                account = recalibrate_for(
                    self.task, pruned, self.model, batch_size=BATCH, seed=self.seed
                )
            self.record.recalibration.append(fill.recalibration(account, name))
            self._measure(f"{name}, recalibrated", pruned)
        recording.add_pruning(
            self.record, self.model, self.task, BATCH, self.plans, CRITERIA[1:], seen
        )

    def tune(self) -> None:
        """Each plan naively and with every connection kept in C and D; saved and loaded again."""
        recipe = obc.Recipe.load(TUNING).changed(seed=self.seed, prune=None)
        for name, plan in self.plans.items():
            for way, equivalent in (("naive", False), ("EP", True)):
                label, place = f"{name}, {way}", self.folder / f"{name}-{way.lower()}"
                pruned = obc.apply(copy.deepcopy(self.model), plan, equivalent=equivalent)
                with self.out.doing(f"tuning {label}"):
                    tuned = obc.finetune(
                        pruned,
                        self.task,
                        recipe,
                        out=self.folder / "tuning" / place.name,
                    )
                obc.save(pruned, place)
                self.record.tuning.append(fill.tuning(way, tuned, name))
                self._measure(label, pruned, place)
                self._reload(label, pruned, place)

    def _reload(self, label: str, model: nn.Module, place: Path) -> None:
        again = model_of(str(place))
        with torch.no_grad():
            same = torch.equal(model.eval()(self.images), again(self.images))
        if not same:
            raise obc.ObcError(f"{place} loads as another model than was saved; please report this")
        self.checks[f"{label}: loaded again"] = "the same to the bit"

    def export(self) -> None:
        suffix = ".onnx" if importlib.util.find_spec("onnxruntime") else ".pt2"
        with self.out.doing("exporting"):
            model = obc.load(self.record.model or "", self.folder / "2x-ep").eval()
            exported = obc.export(model, self.example, self.folder / f"2x-ep{suffix}")
        self.checks[f"2x, EP: exported to {exported.path.name}"] = (
            f"relative error {exported.error:.0e}, {exported.pruned.bytes / 1e6:.2f} MB"
        )

    def _measure(self, name: str, model: nn.Module, place: Path | None = None) -> Measured:
        self.models.append(copy.deepcopy(model))
        self.rows.append(measured(name, model, self.task, self.example, place))
        return self.rows[-1]

    def finish(self) -> Result:
        times = milliseconds(self.models, self.example)  # anew: side by side they can be compared
        self.rows = [replace(m, milliseconds=t) for m, t in zip(self.rows, times, strict=True)]
        whole, best = self.rows[0], {m.name: m for m in self.rows}
        for name in TARGETS:
            tuned = best[f"{name}, EP"].evaluation
            text = tuned.metric.text
            stages = [(whole, "whole")]
            stages += [
                (best[f"{name}, {way}"], words)
                for way, words in (
                    ("not tuned", "cut"),
                    ("recalibrated", "recalibrated"),
                    ("naive", "tuned naively"),
                )
            ]
            note = " → ".join(f"{text(m.evaluation.value)} {words}" for m, words in stages)
            self.record.figures.append(recording.quality(tuned, note, f"at {name} fewer MACs"))
        self.record.latency = [m.row for m in self.rows]
        self.record.warnings = list(self.out.notes)
        self.record.save(self.folder)
        page = obc.report(self.folder)
        self.out.say(models_table(self.task.protocol, self.rows))
        for what, how in self.checks.items():
            self.out.say(f"checked: {what}, {how}")
        self.out.say(f"the report: {page}")
        return {
            "report": page,
            "models": {m.name: plain(m) for m in self.rows},
            "checks": self.checks,
            "notes": self.out.notes,
        }
