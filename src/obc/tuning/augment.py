"""What a recipe does to training images, by kornia, a whole batch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import kornia.augmentation as K
import torch
from kornia.augmentation.auto import RandAugment
from torch import Tensor, nn
from torch.nn import functional as F

from obc.tuning.recipe import Recipe

OPERATIONS = 2  # of RandAugment


class Augment:
    """`views` changes numbers from 0 to 1, `mix` normalised images and their labels."""

    def __init__(self, recipe: Recipe, size: Sequence[int], classes: int) -> None:
        self.classes = classes
        views: list[nn.Module] = []
        if recipe.crop:
            views.append(K.RandomCrop(tuple(size), padding=recipe.crop))
        if recipe.flip:
            views.append(K.RandomHorizontalFlip())
        if recipe.rand_augment:
            views.append(RandAugment(OPERATIONS, recipe.rand_augment))
        self._views = views
        # After normalisation 0 is the mean colour.
        self._erasing = K.RandomErasing(p=recipe.erasing) if recipe.erasing else None
        keys = {"data_keys": ["input", "class"]}
        self._mixes: list[Any] = []
        if recipe.mixup:
            self._mixes.append(_MixUp(recipe.mixup, **keys))
        if recipe.cutmix:
            beta = torch.tensor(recipe.cutmix)
            self._mixes.append(K.RandomCutMixV2(beta=beta, use_correct_lambda=True, **keys))

    @torch.no_grad()
    def views(self, images: Tensor) -> Tensor:
        """Crop, flip, RandAugment."""
        for view in self._views:
            images = view(images)
        return images

    @torch.no_grad()
    def mix(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Erase, then mixup or cutmix, one of them for each batch; labels become shares of two."""
        if self._erasing is not None:
            images = self._erasing(images)
        if not self._mixes:
            return images, labels
        chosen = self._mixes[int(torch.randint(len(self._mixes), ()))]
        images, found = chosen(images, labels)
        # Cutmix numbers its mixes, of which there is one, and gives the first label's share.
        own, other, share = found.reshape(-1, 3).unbind(1)
        share = 1 - share if isinstance(chosen, _MixUp) else share
        first, second = (F.one_hot(y.long(), self.classes).to(images.dtype) for y in (own, other))
        return images, first * share[:, None] + second * (1 - share[:, None])


class _MixUp(K.RandomMixUpV2):  # type: ignore[misc]
    """kornia's mixup with shares from a beta distribution, which it draws uniformly."""

    def __init__(self, alpha: float, **options: Any) -> None:
        super().__init__(**options)
        self._beta = torch.distributions.Beta(alpha, alpha)

    def generate_parameters(self, batch_shape: Any) -> dict[str, Tensor]:
        found: dict[str, Tensor] = super().generate_parameters(batch_shape)
        found["mixup_lambdas"] = self._beta.sample((batch_shape[0],))
        return found
