"""Fresh batches for every step, the same ones for the same seed, and again after a restart."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from obc.errors import ObcError


class Stream:
    """Hands out batches; each step goes on where the last one stopped, and starts over at the end.

    Random numbers that a loader draws come from a state of their own, seeded anew for each round,
    so that a shuffling loader gives the same batches whatever else is drawn.

    >>> stream = Stream([1, 2, 3, 4, 5], seed=0)
    >>> list(stream.take(3)), list(stream.take(3)), list(stream.take(9))
    ([1, 2, 3], [4, 5, 1], [2, 3, 4, 5, 1])
    """

    def __init__(self, batches: Iterable[Any], seed: int) -> None:
        self._batches, self._seed = batches, seed
        self._once = isinstance(batches, Iterator)
        self._open: Iterator[Any] | None = None
        self._length: int | None = None
        self._inside: tuple[torch.Tensor, Any, Any]
        self.round, self.offset, self.drawn = 0, 0, 0

    def take(self, count: int) -> Iterator[Any]:
        """The next so many batches, but none twice: at most one whole round."""
        taken = 0
        while taken < count and (self._length is None or taken < self._length):
            batch = self._draw()
            if batch is not _END:
                taken += 1
                yield batch

    def _draw(self) -> Any:
        """The next batch; at the end of a round nothing, and the next one begins."""
        with self._apart():
            if self._open is None:
                self._open = iter(self._batches)
            batch = next(self._open, _END)
        if batch is not _END:
            self.offset += 1
            self.drawn += 1
            return batch
        if self._once:
            raise ObcError(
                f"the batches ended after {self.offset}: they are an iterator, which can be "
                "read only once; pass a list or a loader"
            )
        if not self.offset:
            raise ObcError("there are no batches to score with")
        self._length = self.offset
        self._open, self.round, self.offset = None, self.round + 1, 0
        return _END

    def skip_to(self, round: int, offset: int) -> None:
        """Go on as a stream would that stands there."""
        if getattr(self._batches, "generator", None) is None:
            self.round = round
        while self.round < round:  # a loader with a generator of its own goes through it all
            self._draw()
        for _ in range(offset):
            self._draw()

    @contextmanager
    def _apart(self) -> Iterator[None]:
        outside = torch.get_rng_state(), random.getstate(), np.random.get_state()
        if self._open is None:
            start = self._seed * 1_000_003 + self.round
            torch.manual_seed(start)
            random.seed(start)
            np.random.seed(start % 2**32)
        else:
            _set_states(*self._inside)
        try:
            yield
        finally:
            self._inside = torch.get_rng_state(), random.getstate(), np.random.get_state()
            _set_states(*outside)


_END = object()


def _set_states(of_torch: torch.Tensor, of_python: Any, of_numpy: Any) -> None:
    torch.set_rng_state(of_torch)
    random.setstate(of_python)
    np.random.set_state(of_numpy)
