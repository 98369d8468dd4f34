"""Training batches of one process, from images of ours or from any batches of the user's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

import torch

from obc.data import Batch, Images
from obc.errors import ObcError
from obc.running.randomness import seed_all
from obc.tuning.augment import Augment
from obc.tuning.evaluate import moved
from obc.tuning.recipe import Recipe


class Feed:
    """The batches of any epoch, from any step on, the same however often one asks.

    `images` is an `Images`, or an iterable of (inputs, labels) that has a length and may be gone
    through again for each epoch, such as a DataLoader or a list.
    """

    def __init__(
        self, images: Any, recipe: Recipe, rank: int, world: int, device: torch.device
    ) -> None:
        self.images, self.recipe = images, recipe
        self.rank, self.world, self.device = rank, world, device
        if world * recipe.accumulate > 1 and recipe.batch_size % (world * recipe.accumulate):
            raise ObcError(
                f"batch_size: {recipe.batch_size} cannot be shared by {world} processes "
                f"in {recipe.accumulate} parts each"
            )
        self.augment: Augment | None = None
        if isinstance(images, Images):
            self.steps = images.count(recipe.batch_size, world)
            self.augment = Augment(recipe, images.shape[1:], len(images.classes))
        else:
            self.steps = _length(images) // world
            _refuse_augmentation(recipe)
        if not self.steps:
            raise ObcError(f"there are fewer batches than the {world} processes")

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from step `start`; all generators start anew for each epoch."""
        if isinstance(self.images, Images):
            seed_all(self.recipe.seed, number, self.rank)
            return self._ours(number, start)
        seed_all(self.recipe.seed, number)
        batches = self._theirs()
        # With its first batch a shuffling loader draws its order, alike in every process; what
        # models and augmentations draw afterwards is each process's own.
        first = list(islice(batches, 1))
        seed_all(self.recipe.seed, number, self.rank)
        if not start:
            return chain(first, batches)
        for _ in range(start - 1):
            next(batches, None)
        return batches

    def _ours(self, number: int, start: int) -> Iterator[Batch]:
        assert self.augment is not None
        for images, labels in self.images.train(
            self.recipe.batch_size,
            seed=self.recipe.seed,
            epoch=number,
            start=start,
            rank=self.rank,
            world=self.world,
            repeats=self.recipe.repeated_augmentation,
            change=self.augment.views,
            device=self.device,
        ):
            yield Batch(*self.augment.mix(images, labels))

    def _theirs(self) -> Iterator[Batch]:
        """Every n-th batch, as many for each process."""
        for position, batch in enumerate(islice(self.images, self.world * self.steps)):
            if position % self.world == self.rank:
                yield moved(batch, self.device)


def _length(batches: Any) -> int:
    if not isinstance(batches, Iterable) or isinstance(batches, Iterator):
        raise ObcError(
            "train must be images of obc.data, or an iterable of batches that can be gone "
            f"through more than once, not a {type(batches).__name__}"
        )
    try:
        return len(batches)  # type: ignore[arg-type]
    except TypeError:
        raise ObcError("train has no length, which the schedule needs") from None


def _refuse_augmentation(recipe: Recipe) -> None:
    for name in ("crop", "flip", "rand_augment", "mixup", "cutmix", "erasing"):
        if getattr(recipe, name):
            raise ObcError(
                f"{name}: batches of your own bring their own augmentation; "
                "recipes augment images of obc.data"
            )
    if recipe.repeated_augmentation > 1:
        raise ObcError("repeated_augmentation: only with images of obc.data")
