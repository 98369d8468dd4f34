"""The part of a run that learns: a model, its optimizer, schedule and average, step by step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from obc.equivalent.attach import is_equivalent
from obc.equivalent.hold import hold
from obc.errors import ObcError
from obc.running.modules import duplicate
from obc.tasks.task import Task
from obc.tuning import checkpoint
from obc.tuning.distillation import listening
from obc.tuning.feed import Feed
from obc.tuning.optimizing import optimizer_of, schedule_of
from obc.tuning.processes import Processes
from obc.tuning.recipe import Recipe


class Learner:
    """`step` computes gradients, `apply` uses them; in between the loss may be found bad."""

    def __init__(
        self,
        working: nn.Module,
        feed: Feed,
        recipe: Recipe,
        teacher: nn.Module | None,
        callback: Callable[[nn.Module], None] | None,
        processes: Processes,
    ) -> None:
        self.recipe, self.feed, self.processes, self.callback = recipe, feed, processes, callback
        self.task: Task = feed.task
        if processes.sharded and (recipe.ema or callback):
            raise ObcError("ema and callbacks need whole weights: not with FSDP")
        working.to(processes.device).train()
        self.teacher = None
        if teacher is not None:
            self.teacher = duplicate(teacher).to(processes.device).eval()
        raw = optimizer_of(working, recipe)
        self.model, self.optimizer = processes.prepared(working, raw)
        self.plain = processes.unwrapped(self.model)
        self.average = None
        if recipe.ema is not None:
            self.average = AveragedModel(
                self.plain, multi_avg_fn=get_ema_multi_avg_fn(recipe.ema), use_buffers=True
            )
        self.done, self.lr = 0, recipe.lr
        self._start_schedule()

    def _start_schedule(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = group.pop("initial_lr", group["lr"])
        inner = self.processes.inner(self.optimizer)
        self.schedule = schedule_of(inner, self.recipe, self.feed.steps, self.done)

    @property
    def judged(self) -> nn.Module:
        """What is evaluated and kept: the average where there is one."""
        if self.average is not None:
            module: nn.Module = self.average.module
            return module
        # A replica would share statistics in each forward pass, however many each process makes.
        return self.model if self.processes.sharded else self.plain

    def judged_state(self) -> dict[str, Tensor]:
        return checkpoint.model_state(self.judged)

    def step(self, batch: Any) -> float:
        """Forward and backward; the mean loss over all processes."""
        total: Any = 0.0
        size, parts = self.task.size(batch), self.task.parts(batch, self.recipe.accumulate)
        with self._held(len(parts)):
            for number, part in enumerate(parts, 1):
                last = number == len(parts)  # a small batch may make fewer parts
                with nullcontext() if last else self.processes.apart(self.model):
                    loss = self._loss(part) * (self.task.size(part) / size)
                    self.processes.backward(loss)
                total = total + loss.detach()
        return self.processes.mean(total)

    def _held(self, parts: int) -> AbstractContextManager[None]:
        """C W Dᵀ is worked out once for all parts of a batch, where one process learns alone."""
        alone = self.processes.world == 1 and not self.processes.sharded
        once = parts > 1 and alone and is_equivalent(self.plain)
        return hold(self.plain) if once else nullcontext()

    def _loss(self, batch: Any) -> Tensor:
        if self.teacher is None:
            return self.task.loss(self.model, batch)
        return self._distilled(self.teacher, batch)

    def _distilled(self, teacher: nn.Module, batch: Any) -> Tensor:
        """(1 − c) · loss + c · distance(student, teacher), the distance being the task's."""
        with listening(self.model) as student:
            loss = self.task.loss(self.model, batch)
        with listening(teacher) as answers, torch.no_grad(), self.processes.autocast():
            self.task.loss(teacher, batch)
        share, temperature = self.recipe.distill, self.recipe.temperature
        distance = sum(
            self.task.distance(a, b, temperature) for a, b in zip(student, answers, strict=True)
        )
        return (1 - share) * loss + share * distance

    def apply(self) -> None:
        """Use the gradients: callback, clipping, optimizer, schedule, average."""
        clip = self.recipe.clip
        if self.callback is not None:
            self.processes.unscale(self.optimizer)
            self.callback(self.plain)
            if clip is not None:
                nn.utils.clip_grad_norm_(self.plain.parameters(), clip)
        elif clip is not None:
            self.processes.clip(self.model, clip)
        self.lr = float(self.optimizer.param_groups[0]["lr"])
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        if self.average is not None:
            self.average.update_parameters(self.plain)
        self.done += 1

    def not_finite(self) -> str | None:
        """The name of a parameter that holds something that is no number, if there is one."""
        for name, p in self.plain.named_parameters():
            if not bool(p.detach().isfinite().all()):
                return name
        return None

    def agree(self) -> None:
        """Statistics are each process's own while learning; the first one's are kept."""
        for model in (self.plain, self.average):
            for buffer in model.buffers() if model is not None else ():
                self.processes.broadcast(buffer)

    def state(self) -> dict[str, Tensor]:
        """All that `restore` needs."""
        self.agree()
        inner = self.processes.inner(self.optimizer)
        tensors = checkpoint.named("model", checkpoint.model_state(self.model))
        tensors |= checkpoint.named("optimizer", checkpoint.optimizer_state(self.model, inner))
        if self.average is not None:
            tensors |= checkpoint.named("average", self.average.state_dict())
        return tensors

    def restore(self, tensors: dict[str, Tensor], done: int) -> None:
        inner = self.processes.inner(self.optimizer)
        checkpoint.set_model_state(self.model, checkpoint.under("model", tensors))
        checkpoint.set_optimizer_state(self.model, inner, checkpoint.under("optimizer", tensors))
        if self.average is not None:
            self.average.load_state_dict(checkpoint.under("average", tensors))
        self.done = done
        self._start_schedule()
