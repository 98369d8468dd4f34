"""A model, its task and the folder that one command works in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from obc.cli import recording
from obc.cli.inputs import example_of
from obc.cli.measure import Measured, measured, models_table, plain
from obc.cli.output import Output, Result
from obc.equivalent.apply import apply
from obc.files.saving import save
from obc.files.shards import size_of
from obc.planning.planner import plan as make_plan
from obc.plans.plan import Plan
from obc.reporting import fill
from obc.reporting.page import report
from obc.reporting.record import Record
from obc.running.modules import duplicate
from obc.tasks.recalibration import recalibrate_for
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

    def measure(self, name: str) -> Measured:
        with self.out.doing(f"evaluating: {name}"):
            return measured(name, self.model, self.task, self.example)

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

    def cut(
        self,
        record: Record,
        plan: Plan,
        *,
        equivalent: bool,
        samples: int,
        batch_size: int,
        seed: int,
    ) -> list[Measured]:
        """Cut the model, recalibrate it, attach C and D where these are to be tuned.

        Args:
            record: gets the account of the recalibration.
            plan: says what goes.
            equivalent: keep every connection; C and D start where recalibration ends.
            samples: to recalibrate with; 0 leaves the cut as it is.
            batch_size: of these samples.
            seed: of everything that is drawn.
        """
        whole = duplicate(self.model)
        apply(self.model, plan, equivalent=equivalent and not samples)
        rows = [self.measure("cut")]
        if samples:
            with self.out.doing("recalibrating"):
                account = recalibrate_for(
                    self.task,
                    self.model,
                    whole,
                    samples=samples,
                    batch_size=batch_size,
                    seed=seed,
                )
            self.out.say(account.summary())
            record.recalibration.append(fill.recalibration(account))
            if equivalent:
                self.model = apply(whole, plan, equivalent=True, init=self.model)
            rows.append(self.measure("recalibrated"))
        return rows

    def save(self, row: Measured) -> Measured:
        """Save the model; its row with the size of the file."""
        save(self.model, self.folder)
        return replace(row, size=size_of(self.folder))

    def tune(self, name: str, recipe: Recipe, **options: Any) -> Tuned:
        with self.out.doing(name):
            return finetune(self.model, self.task, recipe, out=self.folder / name, **options)

    def finish(self, record: Record, rows: list[Measured]) -> Result:
        """Write the record and say what came of it."""
        recording.add_figures(record, rows)
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
