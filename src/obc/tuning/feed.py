"""Training batches of one process, as a task gives them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from obc.errors import ObcError
from obc.running.randomness import seed_all
from obc.tasks.task import Task
from obc.tuning.recipe import Recipe


class Feed:
    """The batches of any epoch, from any step on, the same however often one asks."""

    def __init__(
        self, task: Task, recipe: Recipe, rank: int, world: int, device: torch.device
    ) -> None:
        self.task, self.recipe = task, recipe
        self.rank, self.world, self.device = rank, world, device
        if world * recipe.accumulate > 1 and recipe.batch_size % (world * recipe.accumulate):
            raise ObcError(
                f"batch_size: {recipe.batch_size} cannot be shared by {world} processes "
                f"in {recipe.accumulate} parts each"
            )
        self.steps = task.steps(recipe.batch_size, world)

    def epoch(self, number: int, start: int = 0) -> Iterator[Any]:
        """The batches of an epoch from step `start`; all generators start anew for each epoch."""
        seed_all(self.recipe.seed, number, self.rank)
        return self.task.training(
            self.recipe.batch_size,
            seed=self.recipe.seed,
            epoch=number,
            start=start,
            rank=self.rank,
            world=self.world,
            device=self.device,
        )
