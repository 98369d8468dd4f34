"""One run of tuning from start to end: steps, epochs, checkpoints, and going on from one."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from obc.disk.writing import write_json
from obc.equivalent.attach import is_equivalent
from obc.equivalent.merge import merge
from obc.errors import ObcError
from obc.running import randomness as seeds
from obc.running.modules import duplicate
from obc.running.processes import Group
from obc.tasks.evaluation import Evaluation, best_of
from obc.tasks.task import Task
from obc.tuning import checkpoint, folder, lora
from obc.tuning.feed import Feed
from obc.tuning.learner import Learner
from obc.tuning.processes import Processes
from obc.tuning.progress import Bar
from obc.tuning.recipe import Recipe
from obc.tuning.trainer import history_key

SAVE_STEPS = 1000  # a checkpoint every so many steps, beside the one after each epoch
LOG_STEPS = 50


class Run:
    """One run: a working copy of the model learns, the model itself changes only at the end."""

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        recipe: Recipe,
        teacher: nn.Module | None,
        out: Path | None,
        resume: bool,
        callback: Callable[[nn.Module], None] | None,
        processes: Processes,
    ) -> None:
        self.model, self.recipe = model, recipe
        self.task = task.changed(**recipe.task_options)
        self.out, self.processes = out, processes
        self.feed = Feed(self.task, recipe, processes.rank, processes.world, processes.device)
        if out is not None:
            self._claim(out, teacher is not None, resume)
        seeds.seed_all(recipe.seed)
        working = self._adapted(model)
        self.learner = Learner(working, self.feed, recipe, teacher, callback, processes)
        self.history: list[dict[str, float]] = []
        self.loss_sum = 0.0
        self.random: dict[str, Any] = {}
        if out is not None and (out / folder.LAST).is_file():
            self._resume(out / folder.LAST)
        processes.start_tracking(recipe.model_dump(mode="json"))

    def _claim(self, out: Path, teacher: bool, resume: bool) -> None:
        world = self.processes.world
        about = folder.describe(self.recipe, self.model.state_dict(), self.task, teacher, world)
        self.processes.once(lambda: folder.claim_run(out, about, resume))

    @property
    def total(self) -> int:
        return self.recipe.epochs * self.feed.steps

    def train(self) -> None:
        learner, steps = self.learner, self.feed.steps
        with Bar(self.total, learner.done, self.processes.main) as bar:
            while learner.done < self.total:
                epoch, start = divmod(learner.done, steps)
                batches = self.feed.epoch(epoch, start)
                if start:
                    seeds.restore(self.random)
                for batch in batches:
                    self._step(batch, epoch, bar)
                if learner.done % steps or learner.done == epoch * steps + start:
                    made = learner.done - epoch * steps
                    raise ObcError(f"train had {steps} batches at first, but ended after {made}")
                self._end_epoch(epoch, bar)

    def _step(self, batch: Any, epoch: int, bar: Bar) -> None:
        learner, steps = self.learner, self.feed.steps
        loss = learner.step(batch)
        if not math.isfinite(loss):
            raise ObcError(
                f"the loss is {loss} in epoch {epoch + 1}, step {learner.done % steps + 1} of "
                f"{steps}{self._good()}; a lower lr or clip may help"
            )
        learner.apply()
        self.loss_sum += loss
        bar.step(loss, self.task.size(batch) * self.processes.world)
        if learner.done % LOG_STEPS == 0:
            self.processes.log({"loss": loss, "lr": learner.lr}, learner.done)
        if learner.done % steps and learner.done % SAVE_STEPS == 0:
            self._save()

    def _end_epoch(self, epoch: int, bar: Bar) -> None:
        learner = self.learner
        learner.agree()
        self._check_weights()
        numbers = {"epoch": epoch + 1, "lr": learner.lr, "loss": self.loss_sum / self.feed.steps}
        better = False
        if getattr(self.task, "test", self) is not None:  # a task of yours may not keep its data
            evaluation = self._evaluate()
            better = evaluation.better(best_of(self.evaluations()))
            numbers |= {history_key(name): value for name, value in evaluation.named().items()}
            bar.quality = evaluation.metric.told(evaluation.value)
        self.history.append(numbers)
        self.loss_sum = 0.0
        self.processes.log({**numbers, "samples_per_second": bar.rate}, learner.done)
        if better:
            self._write(folder.BEST, self._plain(), {"step": learner.done, **numbers})
        self._save()

    def _evaluate(self) -> Evaluation:
        model = self.learner.judged
        # With sharded weights every forward pass takes all processes.
        if self.processes.world == 1 or self.processes.sharded:
            return self.task.evaluate(model)
        return self.task.evaluate(model, group=Group())

    def evaluations(self) -> list[Evaluation]:
        """Of each epoch that has ended, as its history tells."""
        names = {m.name: history_key(m.name) for m in self.task.metrics}
        complete = [h for h in self.history if all(key in h for key in names.values())]
        return [
            Evaluation.of(
                self.task.metrics, {n: h[key] for n, key in names.items()}, self.task.protocol
            )
            for h in complete
        ]

    def _write(self, name: str, tensors: dict[str, Any], facts: dict[str, Any]) -> None:
        """One file of the folder, if there is a folder; by the first process."""
        if self.out is not None:
            path = self.out / name
            self.processes.once(lambda: checkpoint.write(path, tensors, facts))

    def _plain(self) -> dict[str, Any]:
        """The judged weights as the plain module has them."""
        fresh = duplicate(self.model)
        self._load(fresh)
        return fresh.state_dict()

    def _load(self, model: nn.Module) -> None:
        """Give a model the judged weights, merged."""
        tuned = model if self.recipe.lora is None else self._adapted(model)
        tuned.load_state_dict(self.learner.judged_state())
        for equivalent in (tuned, model):
            if is_equivalent(equivalent):
                merge(equivalent)
        if tuned is not model:
            lora.fold(tuned)
            model.load_state_dict(tuned.state_dict())

    def _adapted(self, model: nn.Module) -> nn.Module:
        """A copy of the model that learns, with adapters where the recipe asks for them."""
        working = duplicate(model)
        if self.recipe.lora is not None:
            lora.attach(working, self.recipe.lora)
        return working

    def _check_weights(self) -> None:
        """Gradients may be no numbers where the loss still is one; such weights are not kept."""
        bad = self.learner.not_finite()
        if bad is not None:
            epoch, step = divmod(self.learner.done - 1, self.feed.steps)
            raise ObcError(
                f"'{bad}' is not finite after epoch {epoch + 1}, step {step + 1} of "
                f"{self.feed.steps}{self._good()}; a lower lr or clip may help"
            )

    def _good(self) -> str:
        last = self.out / folder.LAST if self.out is not None else None
        return f"; the last good checkpoint is {last}" if last and last.is_file() else ""

    def _save(self) -> None:
        self._check_weights()
        if self.out is None:
            self.learner.agree()
            return
        tensors = self.learner.state()
        for rank, states in enumerate(self.processes.gathered(seeds.capture())):
            tensors |= checkpoint.named(f"random.{rank}", states)
        facts = {
            "step": self.learner.done,
            "loss_sum": self.loss_sum,
            "history": self.history,
            "scaler": self.processes.scaler_state(),
        }
        self._write(folder.LAST, tensors, facts)

    def _resume(self, last: Path) -> None:
        tensors, facts = checkpoint.read(last)
        try:
            self.learner.restore(tensors, facts["step"])
            self.history, self.loss_sum = facts["history"], facts["loss_sum"]
            self.processes.set_scaler_state(facts["scaler"])
            self.random = checkpoint.under(f"random.{self.processes.rank}", tensors)
        except (KeyError, RuntimeError, ValueError) as error:
            raise ObcError(f"{last} does not fit this run: {error}") from error

    def finish(self) -> None:
        """Hand the weights to the model; write them and the result."""
        result = {"steps": self.learner.done, "history": self.history}
        self._write(folder.FINAL, self._plain(), result)
        if self.out is not None:
            path = self.out / folder.RESULT
            self.processes.once(lambda: write_json(path, result))
        self._load(self.model)
