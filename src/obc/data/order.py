"""The order of training batches, which follows from a seed and an epoch alone."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import TypedDict

from obc.errors import ObcError


class Order(TypedDict, total=False):
    """Which batches of the training data: keywords of everything that hands them out.

    `size`, which stands beside them, is that of a whole batch, over all processes.
    """

    seed: int  # with `epoch`, what the order follows from; 0
    epoch: int  # the epoch's number; 0
    start: int  # the first batch's number; 0
    rank: int  # this process's number among `world`; 0
    world: int  # processes, each of which gets its share of every batch; 1


FIRST: Order = {"seed": 0, "epoch": 0, "start": 0, "rank": 0, "world": 1}


def picks(
    count: int, size: int, order: Order, repeats: int = 1
) -> list[tuple[Tensor, torch.Generator]]:
    """For each batch the numbers of its samples, and a generator for what is drawn of them.

    With `repeats`, each sample comes so many times in a row, so an epoch sees fewer of them.

    >>> [numbers.tolist() for numbers, _ in picks(5, 2, {"epoch": 1})]
    [[1, 2], [0, 4]]
    """
    which = FIRST | order
    seed, epoch, rank, world = (which[key] for key in ("seed", "epoch", "rank", "world"))
    numbers = torch.randperm(count, generator=seeded(seed, epoch))
    if repeats > 1:
        numbers = numbers[: -(-count // repeats)].repeat_interleave(repeats)
    return [
        (numbers[n * size + rank : (n + 1) * size : world], seeded(seed, epoch, n, rank))
        for n in range(which["start"], whole_batches(count, size, world))
    ]


def whole_batches(count: int, size: int, world: int = 1) -> int:
    """How many batches an epoch of `count` samples has; the rest that fills none is left out."""
    if size % world:
        raise ObcError(f"a batch of {size} cannot be shared by {world} processes")
    if size > count:
        raise ObcError(f"a batch of {size} is more than the {count} samples there are")
    return count // size


def positions(count: int, half: int | None = None) -> Tensor:
    """All samples, or one of two halves drawn once and for all: they have no sample in common.

    >>> positions(5).tolist(), positions(5, 0).tolist(), positions(5, 1).tolist()
    ([0, 1, 2, 3, 4], [0, 2], [1, 3, 4])
    """
    if half is None:
        return torch.arange(count)
    drawn = torch.randperm(count, generator=seeded(count))
    chosen = drawn[: count // 2] if half == 0 else drawn[count // 2 :]
    return chosen.sort().values


def seeded(*numbers: int) -> torch.Generator:
    """A generator of its own for each sequence of numbers, well apart from its neighbours."""
    mixed = 0
    for number in numbers:
        mixed = (mixed * 1_000_003 + number + 1) % 2**63
    return torch.Generator().manual_seed(mixed)
