"""A model, its task and the folder that one command works in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from obc.cli import recording
from obc.cli.inputs import example_of
from obc.cli.measure import Measured, measured, models_table, plain
from obc.cli.output import Output, Result
from obc.plans.plan import Plan
from obc.reporting.page import report
from obc.reporting.record import Record
from obc.search.planner import plan as make_plan
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
