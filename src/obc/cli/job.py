"""A model, its task and the folder that one command works in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from obc.cli import recording
from obc.cli.inputs import example_of
from obc.cli.measure import Measured, measured, models_table, plain
from obc.cli.output import Output, Result
from obc.planning.planner import plan as make_plan
from obc.plans.plan import Plan
from obc.recalibration.recalibrate import recalibrate
from obc.reporting.page import report
from obc.reporting.record import Record
from obc.running.forward import arguments
from obc.tasks.task import Task
from obc.tuning.recipe import Recipe
from obc.tuning.trainer import Tuned, finetune


@dataclass
class Job:
    """What `obc prune`, `obc tune` and `obc run` have in common."""

    out: Output
    model: nn.Module
    task: Task
    folder: Path

    def __post_init__(self) -> None:
        self.example = example_of(self.model, self.task)

    def measure(self, name: str, saved: bool = False) -> Measured:
        with self.out.doing(f"evaluating: {name}"):
            place = self.folder if saved else None
            return measured(name, self.model, self.task, self.example, place)

    def plan(self, batch_size: int, **settings: Any) -> Plan:
        with self.out.doing("planning"):
            plan: Plan = make_plan(
                self.model,
                self.example,
                self.task.calibration(batch_size),
                self.task.loss,
                resume=self.folder / "planning",
                **settings,
            )
            return plan

    def recalibrate(self, whole: nn.Module, batch_size: int, samples: int, seed: int) -> None:
        """Fit what stays to what the whole model computes."""

        def call(model: nn.Module, batch: Any) -> Any:
            args, kwargs = arguments(self.task.inputs(batch))
            return model(*args, **kwargs)

        with self.out.doing("recalibrating"), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            batches = self.task.calibration(min(batch_size, samples))
            account = recalibrate(self.model, whole, batches, call=call, samples=samples, seed=seed)
        self.out.say(account.summary())

    def tune(self, name: str, recipe: Recipe, **options: Any) -> Tuned:
        with self.out.doing(name):
            return finetune(self.model, self.task, recipe, out=self.folder / name, **options)

    def finish(self, record: Record, rows: list[Measured]) -> Result:
        """Write the record and say what came of it."""
        recording.add_figures(record, rows[0], rows[-1])
        record.latency = [m.row for m in rows]
        record.warnings = list(self.out.notes)
        record.save(self.folder)
        page = report(self.folder)
        self.out.say(models_table(record.title, rows))
        self.out.say(f"saved in {self.folder}; the report: {page}")
        return {
            "folder": self.folder,
            "report": page,
            "model": record.model,
            **{m.name: plain(m) for m in rows},
            "notes": self.out.notes,
        }
