"""One run of tuning from start to end: steps, epochs, checkpoints, and going on from one."""

from __future__ import annotations

import copy
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
from obc.tuning import checkpoint, folder
from obc.tuning.evaluate import Score, counted, scored
from obc.tuning.feed import Feed
from obc.tuning.learner import Learner
from obc.tuning.processes import Processes
from obc.tuning.progress import Bar
from obc.tuning.recipe import Recipe

SAVE_STEPS = 1000  # a checkpoint every so many steps, beside the one after each epoch
LOG_STEPS = 50


class Run:
    """One run: a working copy of the model learns, the model itself changes only at the end."""

    def __init__(
        self,
        model: nn.Module,
        train: Any,
        val: Any,
        recipe: Recipe,
        teacher: nn.Module | None,
        out: Path,
        resume: bool,
        callback: Callable[[nn.Module], None] | None,
        processes: Processes,
    ) -> None:
        self.model, self.val, self.recipe = model, val, recipe
        self.out, self.processes = out, processes
        self.feed = Feed(train, recipe, processes.rank, processes.world, processes.device)
        about = folder.describe(
            recipe, model.state_dict(), train, teacher is not None, processes.world
        )
        processes.once(lambda: folder.claim_run(out, about, resume))
        seeds.seed_all(recipe.seed)
        self.learner = Learner(
            copy.deepcopy(model), self.feed, recipe, teacher, callback, processes
        )
        self.history: list[dict[str, float]] = []
        self.loss_sum = 0.0
        self.random: dict[str, Any] = {}
        if (out / folder.LAST).is_file():
            self._resume()
        processes.start_tracking(recipe.model_dump(mode="json"))

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
        bar.step(loss, len(batch.labels) * self.processes.world)
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
        if self.val is not None:
            score = self._score()
            best = max((h["top1"] for h in self.history), default=-1.0)
            better = score.top1 > best
            numbers |= {"top1": score.top1, "top5": score.top5, "val_loss": score.loss}
            bar.accuracy = f"top-1 {score.top1:.2f}%"
        self.history.append(numbers)
        self.loss_sum = 0.0
        self.processes.log({**numbers, "images_per_second": bar.rate}, learner.done)
        if better:
            plain = self._plain()
            facts = {"step": learner.done, **numbers}
            self.processes.once(lambda: checkpoint.write(self.out / folder.BEST, plain, facts))
        self._save()

    def _score(self) -> Score:
        rank, world = self.processes.rank, self.processes.world
        if self.processes.sharded:  # every forward pass takes all processes
            return scored(counted(self.learner.judged, self.val, 0, 1))
        sums = counted(self.learner.judged, self.val, rank, world)
        return scored(self.processes.summed(sums))

    def _plain(self) -> dict[str, Any]:
        """The judged weights as the plain module has them."""
        fresh = copy.deepcopy(self.model)
        self._load(fresh)
        return fresh.state_dict()

    def _load(self, model: nn.Module) -> None:
        """Give a model the judged weights, merged."""
        model.load_state_dict(self.learner.judged_state())
        if is_equivalent(model):
            merge(model)

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
        last = self.out / folder.LAST
        return f"; the last good checkpoint is {last}" if last.is_file() else ""

    def _save(self) -> None:
        self._check_weights()
        tensors = self.learner.state()
        for rank, states in enumerate(self.processes.gathered(seeds.capture())):
            tensors |= checkpoint.named(f"random.{rank}", states)
        facts = {
            "step": self.learner.done,
            "loss_sum": self.loss_sum,
            "history": self.history,
            "scaler": self.processes.scaler_state(),
        }
        self.processes.once(lambda: checkpoint.write(self.out / folder.LAST, tensors, facts))

    def _resume(self) -> None:
        tensors, facts = checkpoint.read(self.out / folder.LAST)
        try:
            self.learner.restore(tensors, facts["step"])
            self.history, self.loss_sum = facts["history"], facts["loss_sum"]
            self.processes.set_scaler_state(facts["scaler"])
            self.random = checkpoint.under(f"random.{self.processes.rank}", tensors)
        except (KeyError, RuntimeError, ValueError) as error:
            raise ObcError(f"{self.out / folder.LAST} does not fit this run: {error}") from error

    def finish(self) -> list[Score]:
        """Hand the weights to the model, write them and the result; the score of each epoch."""
        scores = [Score(h["top1"], h["top5"], h["val_loss"]) for h in self.history if "top1" in h]
        plain = self._plain()
        result = {"steps": self.learner.done, "history": self.history}
        self.processes.once(lambda: checkpoint.write(self.out / folder.FINAL, plain, result))
        self.processes.once(lambda: write_json(self.out / folder.RESULT, result))
        self._load(self.model)
        return scores
