"""Batches for each step: fresh, in turn, and the same ones again."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import obc
from obc.search.stream import Position, Stream


def loader() -> DataLoader[int]:
    return DataLoader(list(range(20)), batch_size=4, shuffle=True)


def steps(stream: Stream, counts: list[int]) -> list[list[list[int]]]:
    return [[b.tolist() for b in stream.take(n)] for n in counts]


def test_no_batch_twice_in_a_step() -> None:
    stream = Stream([1, 2, 3], seed=0)
    assert [list(stream.take(50)) for _ in range(3)] == [[1, 2, 3]] * 3


def test_a_shuffling_loader_gives_the_same_batches_for_the_same_seed() -> None:
    state = torch.get_rng_state()
    one = steps(Stream(loader(), seed=1), [3, 3, 3, 3])
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert one == steps(Stream(loader(), seed=1), [3, 3, 3, 3])
    assert one != steps(Stream(loader(), seed=2), [3, 3, 3, 3])
    flat = [b for step in one for b in step]
    assert flat[:5] != flat[5:10], "each round has an order of its own"


@pytest.mark.parametrize("own", [False, True], ids=["", "a generator of its own"])
@pytest.mark.parametrize("before", [[3], [3, 4], [9], [5, 5]])
def test_a_stream_goes_on_where_another_stood(own: bool, before: list[int]) -> None:
    def fresh(position: Position | None = None) -> Stream:
        batches = loader()
        if own:
            generator = torch.Generator().manual_seed(7)
            batches = DataLoader(list(range(20)), 4, shuffle=True, generator=generator)
        return Stream(batches, seed=1, position=position)

    whole = fresh()
    steps(whole, before)
    again = fresh(whole.position.model_copy())
    assert again.position == whole.position
    assert steps(whole, [3, 9, 2]) == steps(again, [3, 9, 2])


def test_numbers_drawn_on_the_way_are_repeated_too() -> None:
    class Noisy:
        def __iter__(self) -> Iterator[tuple[float, ...]]:
            for _ in range(6):
                yield float(torch.rand(())), random.random(), float(np.random.rand())

    whole = Stream(Noisy(), seed=1)
    first = list(whole.take(4))
    torch.rand(3), random.random()
    rest = list(whole.take(2))
    again = Stream(Noisy(), seed=1, position=Position(offset=4))
    assert list(again.take(2)) == rest
    assert len(set(first + rest)) == 6


def test_an_iterator_that_ends_is_an_error() -> None:
    stream = Stream(iter([1, 2, 3]), seed=0)
    assert list(stream.take(2)) == [1, 2]
    with pytest.raises(obc.ObcError, match=r"ended after 3: they are an iterator.*pass a list"):
        list(stream.take(2))


def test_no_batches_are_an_error() -> None:
    with pytest.raises(obc.ObcError, match="no batches"):
        list(Stream([], seed=0).take(2))
