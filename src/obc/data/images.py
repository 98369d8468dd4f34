"""Labelled images, and batches of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import Unpack

from obc.data.order import Order, picks, positions, whole_batches
from obc.errors import ObcError


class Batch(NamedTuple):
    """Images, normalised as networks want them, and their labels."""

    images: Tensor
    labels: Tensor


Change = Callable[[Tensor], Tensor]


class Images(ABC):
    """A set of labelled images of one size; what holds the pixels is left to subclasses."""

    def __init__(
        self,
        labels: Tensor,
        shape: Sequence[int],
        classes: Sequence[str],
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        self.labels, self.shape = labels, tuple(shape)
        self.classes, self.mean, self.std = tuple(classes), tuple(mean), tuple(std)
        if labels.ndim != 1 or labels.dtype != torch.int64:
            raise ObcError("labels must be a vector of int64")
        if not len(labels):
            raise ObcError("there are no images")
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= len(self.classes):
            wrong = low if low < 0 else high
            raise ObcError(f"a label is {wrong}, but there are {len(self.classes)} classes")
        if not len(self.mean) == len(self.std) == self.shape[0]:
            raise ObcError(f"{self.shape[0]} channels need as many means and deviations")

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def fetch(self, index: Tensor, random: torch.Generator | None) -> Tensor:
        """The pixels of these images; `random` is there in training, for random views."""

    def described(self) -> dict[str, object]:
        """What a run is recognised by when it goes on."""
        return {"images": len(self), "shape": list(self.shape)}

    def unit(self, pixels: Tensor) -> Tensor:
        """Bytes as numbers from 0 to 1; what is floating point stays."""
        return pixels if pixels.is_floating_point() else pixels.float().div_(255)

    def normalised(self, pixels: Tensor) -> Tensor:
        """Numbers from 0 to 1 with the set's mean and deviation taken out."""
        mean, std = (
            torch.tensor(v, dtype=pixels.dtype, device=pixels.device).view(-1, 1, 1)
            for v in (self.mean, self.std)
        )
        return (pixels - mean) / std

    def count(self, size: int, world: int = 1) -> int:
        """How many training batches an epoch has; the rest that fills none is left out."""
        return whole_batches(len(self), size, world)

    def train(
        self,
        size: int,
        *,
        repeats: int = 1,
        change: Change | None = None,
        device: torch.device | None = None,
        **order: Unpack[Order],
    ) -> Iterator[Batch]:
        """The batches of one epoch, shuffled.

        Args:
            size: of a whole batch, over all processes.
            repeats: how often each image comes in a row; an epoch then sees fewer images.
            change: applied to numbers from 0 to 1, before normalisation.
            device: where the batches are wanted.
            order: `seed`, `epoch`, `start`, `rank` and `world` of `obc.data.order.Order`.

        >>> pixels = torch.arange(4, dtype=torch.uint8).view(4, 1, 1, 1)
        >>> data = Loaded(pixels, torch.arange(4), "abcd", [0.0], [1.0])
        >>> [b.labels.tolist() for b in data.train(2, epoch=1)]
        [[2, 1], [3, 0]]
        """
        for index, pixels in self._ahead(picks(len(self), size, order, repeats)):
            numbers = self.unit(pixels.to(device, non_blocking=True))
            numbers = change(numbers) if change is not None else numbers
            yield Batch(self.normalised(numbers), self.labels[index].to(device))

    def test(
        self,
        size: int = 256,
        *,
        rank: int = 0,
        world: int = 1,
        half: int | None = None,
        device: torch.device | None = None,
    ) -> Iterator[Batch]:
        """All images or one half of them in their order, or one process's share of these."""
        mine = positions(len(self), half)[rank::world]
        for index, pixels in self._ahead([(part, None) for part in mine.split(size)]):
            numbers = self.unit(pixels.to(device, non_blocking=True))
            yield Batch(self.normalised(numbers), self.labels[index].to(device))

    def _ahead(
        self, parts: Sequence[tuple[Tensor, torch.Generator | None]]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Fetch each batch while the one before is being used."""
        with ThreadPoolExecutor(1) as pool:
            waiting = None
            for index, random in parts:
                following = pool.submit(self.fetch, index, random)
                if waiting is not None:
                    yield waiting[0], waiting[1].result()
                waiting = (index, following)
            if waiting is not None:
                yield waiting[0], waiting[1].result()


class Loaded(Images):
    """Images in memory: [count, channels, height, width], bytes or normalised floating point."""

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        classes: Sequence[str],
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        if images.ndim != 4 or not (images.dtype == torch.uint8 or images.is_floating_point()):
            raise ObcError(
                "images must be [count, channels, height, width], uint8 or floating point, "
                f"not {list(images.shape)}, {images.dtype}"
            )
        if len(images) != len(labels):
            raise ObcError(f"{len(images)} images have {len(labels)} labels")
        super().__init__(labels, images.shape[1:], classes, mean, std)
        self.images = images

    def fetch(self, index: Tensor, random: torch.Generator | None) -> Tensor:
        return self.images[index]

    def part(self, count: int) -> Loaded:
        """The first images only, for trying things out."""
        return Loaded(self.images[:count], self.labels[:count], self.classes, self.mean, self.std)


def statistics(images: Tensor) -> tuple[list[float], list[float]]:
    """Mean and deviation of each channel, of bytes as numbers from 0 to 1.

    >>> statistics(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1))
    ([0.5], [0.5])
    """
    values = torch.arange(256, dtype=torch.float64) / 255
    mean, std = [], []
    for channel in images.movedim(1, 0):
        share = torch.bincount(channel.reshape(-1), minlength=256).double() / channel.numel()
        centre = float(share @ values)
        mean.append(round(centre, 4))
        std.append(max(round(float((share @ (values - centre).square()).sqrt()), 4), 1e-4))
    return mean, std
