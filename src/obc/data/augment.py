"""Random views and mixtures of training images, by kornia, a whole batch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import kornia.augmentation as K
import torch
from kornia.augmentation.auto import RandAugment
from torch import Tensor, nn
from torch.nn import functional as F

OPERATIONS = 2  # of RandAugment


class Augment:
    """`views` changes numbers from 0 to 1, `mix` normalised images and their labels.

    Args:
        size: height and width of the images.
        classes: how many there are.
        crop: pixels of padding around a random crop.
        flip: whether half of the images are mirrored.
        rand_augment: the magnitude of RandAugment's two operations.
        mixup: both parameters of the beta distribution that shares are drawn from.
        cutmix: the same for pasted rectangles.
        erasing: the share of images that lose a rectangle.
    """

    def __init__(
        self,
        size: Sequence[int],
        classes: int,
        *,
        crop: int = 0,
        flip: bool = False,
        rand_augment: int = 0,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        erasing: float = 0.0,
    ) -> None:
        self.classes = classes
        views: list[nn.Module] = []
        if crop:
            views.append(K.RandomCrop(tuple(size), padding=crop))
        if flip:
            views.append(K.RandomHorizontalFlip())
        if rand_augment:
            views.append(RandAugment(OPERATIONS, rand_augment))
        self._views = views
        # After normalisation 0 is the mean colour.
        self._erasing = K.RandomErasing(p=erasing) if erasing else None
        keys = {"data_keys": ["input", "class"]}
        self._mixes: list[Any] = []
        if mixup:
            self._mixes.append(_MixUp(mixup, **keys))
        if cutmix:
            beta = torch.tensor(cutmix)
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
        images, mixed = chosen(images, labels)
        # Cutmix numbers its mixes, of which there is one, and gives the first label's share.
        label, other, share = mixed.reshape(-1, 3).unbind(1)
        share = 1 - share if isinstance(chosen, _MixUp) else share
        first, second = (F.one_hot(y.long(), self.classes).to(images.dtype) for y in (label, other))
        return images, first * share[:, None] + second * (1 - share[:, None])


class _MixUp(K.RandomMixUpV2):  # type: ignore[misc]
    """kornia's mixup with shares from a beta distribution, which it draws uniformly."""

    def __init__(self, alpha: float, **options: Any) -> None:
        super().__init__(**options)
        self._beta = torch.distributions.Beta(alpha, alpha)

    def generate_parameters(self, batch_shape: Any) -> dict[str, Tensor]:
        parameters: dict[str, Tensor] = super().generate_parameters(batch_shape)
        parameters["mixup_lambdas"] = self._beta.sample((batch_shape[0],))
        return parameters
