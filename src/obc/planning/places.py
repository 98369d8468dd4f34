"""A run of Algorithm 1 that goes on as far as it is asked to, and the model at any place of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from obc.disk import claim, writing
from obc.plans.plan import Plan, PlanCost
from obc.recalibration.recalibrate import call_by, recalibrate, said_by
from obc.recalibration.rows import samples_in
from obc.running import randomness
from obc.running.modules import duplicate
from obc.search.algorithm import Run
from obc.surgery.slicing import apply
from obc.tasks.evaluation import Evaluation
from obc.tasks.task import Split, Task

_FOLDER = "evaluations"


def first_batches(batches: Iterable[Any], samples: int, seed: int) -> list[Any]:
    """Enough batches to recalibrate with, the same for every place of a run."""
    chosen: list[Any] = []
    with randomness.kept():
        randomness.seed(seed)
        count = 0
        for batch in batches:
            chosen.append(batch)
            count += samples_in(batch)
            if count >= samples:
                break
    return chosen


class Places:
    """The places of a run: costs, plans, models and evaluations by the number of steps.

    Args:
        run: goes on when it is asked to.
        task: what models are evaluated by.
        batches: to recalibrate with.
        samples: of them that recalibration uses; 0 leaves the cut as it is.
        folder: where evaluations are kept, so that a killed run does not repeat them.
    """

    def __init__(
        self,
        run: Run,
        task: Task,
        batches: Sequence[Any],
        samples: int,
        folder: str | os.PathLike[str] | None,
    ) -> None:
        self.run, self.task, self.batches, self.samples = run, task, batches, samples
        self.evaluations: dict[tuple[int, Split], Evaluation] = {}
        self._folder = Path(folder) / _FOLDER if folder is not None else None
        if self._folder is not None:
            facts = {**run.state.run, "task": task.protocol, "samples": samples}
            claim.claim(self._folder, facts)

    @property
    def last(self) -> int:
        """How many steps the run has taken."""
        return len(self.run.state.history)

    def cost(self, step: int) -> float:
        """What the model costs after so many steps, in the unit of the run.

        Measured seconds vary more than a step saves. Along a run they are taken not to rise: a
        place costs what the fastest up to it was measured at.
        """
        steps = self.run.state.history[:step]
        costs = [self._value(cost) for cost in (self.run.reach.before, *(s.after for s in steps))]
        return min(costs) if self.run.target.measured else costs[-1]

    def saving(self, step: int) -> str:
        """The same as a target: "macs=1.5x"."""
        return self.run.target.like(self.cost(0), self.cost(step))

    def plan(self, step: int) -> Plan:
        """The plan after so many steps."""
        return self.run.so_far().at(step)

    def model(self, step: int) -> nn.Module:
        """The model after so many steps, recalibrated."""
        whole, example = self.run.model, self.run.example
        if not step:
            return whole
        small = apply(duplicate(whole), self.plan(step), example=example)
        if self.samples:
            recalibrate(
                small,
                whole,
                self.batches,
                call=partial(call_by, self.task),
                samples=self.samples,
                **said_by(self.task),
                example=example,
                seed=self.run.settings.seed,
            )
        return small

    def evaluation(self, step: int, split: Split) -> Evaluation:
        """The task's evaluation of the model after so many steps; made once."""
        key = (step, split)
        if key not in self.evaluations:
            file = self._folder / f"{split}-{step}.safetensors" if self._folder else None
            if file is not None and file.is_file():
                self.evaluations[key] = self._read(load_file(file))
            else:
                self.run.progress.say(f"evaluating after step {step}, {self.saving(step)}")
                self.evaluations[key] = self.task.evaluate(self.model(step), split)
                self._write(file, self.evaluations[key])
        return self.evaluations[key]

    def _value(self, cost: PlanCost) -> float:
        return float(getattr(cost, self.run.target.field))

    def _read(self, tensors: Mapping[str, torch.Tensor]) -> Evaluation:
        values = tuple(tensors["values"].tolist())
        return Evaluation(tuple(self.task.metrics), values, samples=tensors.get("samples"))

    def _write(self, file: Path | None, evaluation: Evaluation) -> None:
        if file is None or self.run.scorer.group.rank:
            return
        tensors = {"values": torch.tensor(evaluation.values, dtype=torch.float64)}
        if evaluation.samples is not None:
            tensors["samples"] = evaluation.samples.contiguous()
        writing.write(file, lambda aside: save_file(tensors, aside))
