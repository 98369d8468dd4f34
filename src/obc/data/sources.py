"""Batches of any kind of data: images of ours, a data set of samples, or batches at hand.

A source hands out training batches in an order that follows from seed and epoch alone, from any
step on, shared over processes; and the batches of an evaluation in their order, all of them or one
of two halves that have no sample in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from itertools import chain, islice
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.data import DataLoader, Dataset, IterableDataset
from typing_extensions import Unpack

from obc.data.images import Images
from obc.data.order import FIRST, Order, picks, positions, whole_batches
from obc.errors import ObcError
from obc.running.randomness import kept, seed_all

Collate = Callable[[list[Any]], Any]


class Source(Protocol):
    """What a task asks of its data."""

    def count(self, size: int, world: int = 1) -> int:
        """How many training batches each of `world` processes makes in an epoch."""

    def train(self, size: int, **order: Unpack[Order]) -> Iterator[Any]:
        """The batches of one epoch; `size` is that of all processes."""

    def test(
        self, size: int = 256, *, rank: int = 0, world: int = 1, half: int | None = None
    ) -> Iterator[Any]:
        """One process's share of all samples, or of one of their halves, in order."""

    def described(self) -> dict[str, Any]:
        """What a run is recognised by when it goes on."""


def source_of(data: Any, collate: Collate | None = None) -> Source:
    """The source that fits: `Images`, a data set of samples (torch's or HF's), or batches.

    `collate` makes a batch of a list of samples; torch's own does if there is none.

    >>> source_of([torch.zeros(2, 3), torch.ones(2, 3)]).count(2)
    2
    >>> samples = torch.utils.data.TensorDataset(torch.arange(5.0))
    >>> source_of(samples).count(2)
    2
    """
    if isinstance(data, Images):
        return data
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        return Samples(data, collate)
    if hasattr(data, "column_names"):  # a `datasets.Dataset`, which is not one of torch's
        return Samples(data, collate)
    return Batches(data)


class Samples:
    """A data set with a length and samples by number, put together as torch's loader does it."""

    def __init__(self, data: Any, collate: Collate | None = None) -> None:
        if not len(data):
            raise ObcError("there are no samples")
        self.data, self.collate = data, collate

    def __len__(self) -> int:
        return len(self.data)

    def count(self, size: int, world: int = 1) -> int:
        """Whole batches only; what fills none is left out of the epoch."""
        return whole_batches(len(self), size, world)

    def train(self, size: int, **order: Unpack[Order]) -> Iterator[Any]:
        """Shuffled by seed and epoch; earlier batches are skipped without being read."""
        return self._batches([numbers for numbers, _ in picks(len(self), size, order)])

    def test(
        self, size: int = 256, *, rank: int = 0, world: int = 1, half: int | None = None
    ) -> Iterator[Any]:
        """Samples in their order."""
        return self._batches(list(positions(len(self), half)[rank::world].split(size)))

    def _batches(self, parts: list[Tensor]) -> Iterator[Any]:
        # A generator of its own: with its first batch a loader draws a seed for its workers.
        loader = DataLoader(
            self.data,
            batch_sampler=[part.tolist() for part in parts],
            collate_fn=self.collate,
            generator=torch.Generator(),
        )
        return iter(loader)

    def described(self) -> dict[str, Any]:
        """The number of samples."""
        return {"samples": len(self)}


class Batches:
    """Batches that somebody else makes: a DataLoader, a list; their order is theirs."""

    def __init__(self, batches: Any) -> None:
        if not isinstance(batches, Iterable) or isinstance(batches, Iterator):
            raise ObcError(
                "data must be images of obc.data, a data set, or an iterable of batches that can "
                f"be gone through more than once, not a {type(batches).__name__}"
            )
        self.batches = batches

    def count(self, size: int, world: int = 1) -> int:
        """As many as there are for each process; their size is their own."""
        if not isinstance(self.batches, Sized):
            raise ObcError("train has no length, which the schedule needs")
        try:
            steps = len(self.batches) // world
        except TypeError:  # a loader of an iterable data set has the method, and no length
            raise ObcError("train has no length, which the schedule needs") from None
        if not steps:
            raise ObcError(f"there are fewer batches than the {world} processes")
        return steps

    def train(self, size: int, **order: Unpack[Order]) -> Iterator[Any]:
        """Every `world`-th batch; those before `start` are drawn and put aside."""
        which = FIRST | order
        start, rank, world = which["start"], which["rank"], which["world"]
        batches = self._shared(self.count(size, world), rank, world)
        with kept():
            # With its first batch a shuffling loader draws its order, alike in every process; what
            # models and augmentations draw afterwards is each process's own.
            seed_all(which["seed"], which["epoch"])
            first = list(islice(batches, 1))
        if not start:
            return chain(first, batches)
        for _ in range(start - 1):
            next(batches, None)
        return batches

    def _shared(self, steps: int, rank: int, world: int) -> Iterator[Any]:
        for number, batch in enumerate(islice(self.batches, world * steps)):
            if number % world == rank:
                yield batch

    def test(
        self, size: int = 256, *, rank: int = 0, world: int = 1, half: int | None = None
    ) -> Iterator[Any]:
        """Batches in their order; a half takes every second one."""
        batches = self.batches if half is None else islice(self.batches, half, None, 2)
        return islice(batches, rank, None, world)

    def described(self) -> dict[str, Any]:
        """The number of batches."""
        return {"batches": len(self.batches)} if isinstance(self.batches, Sized) else {}


def moved(batch: Any, device: torch.device | None) -> Any:
    """A batch of any structure with its tensors on a device; mappings become plain dicts."""
    if isinstance(batch, Mapping):  # a `BatchEncoding` of tokenizers is no dict
        batch = dict(batch)
    return tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, batch)


def size_of(batch: Any) -> int:
    """The number of samples of a batch: the length of its first tensor.

    >>> size_of({"ids": torch.zeros(4, 7), "mask": torch.zeros(4, 7)})
    4
    """
    sizes = [len(x) for x in tree_leaves(batch) if isinstance(x, Tensor) and x.ndim]
    if not sizes:
        raise ObcError("a batch must hold a tensor whose first dimension counts samples")
    return sizes[0]


def parts_of(batch: Any, count: int) -> list[Any]:
    """A batch in so many parts along the first dimension; a small one may make fewer.

    >>> [part["x"].tolist() for part in parts_of({"x": torch.arange(4), "k": 7}, 2)]
    [[0, 1], [2, 3]]
    """
    leaves, structure = tree_flatten(batch)
    number = len(torch.empty(size_of(batch)).chunk(count))
    split = [x.chunk(count) if isinstance(x, Tensor) else [x] * number for x in leaves]
    return [tree_unflatten([part[n] for part in split], structure) for n in range(number)]
