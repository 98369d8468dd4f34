"""Fresh batches for every step, the same ones for the same seed, and again after a restart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel, ConfigDict
from torch import Tensor

from obc.errors import ObcError
from obc.running import randomness


class Position(BaseModel):
    """Where a stream stands: rounds that are done, and batches used of the round at hand."""

    model_config = ConfigDict(extra="forbid", strict=True)

    round: int = 0
    offset: int = 0


class Stream:
    """Hands out batches; each step goes on where the last one stopped, and starts over at the end.

    Random numbers that a loader draws come from a state of their own, seeded anew for each round,
    so that a shuffling loader gives the same batches whatever else is drawn. The stream begins at
    `position` and moves it along.

    >>> stream = Stream([1, 2, 3, 4, 5], seed=0)
    >>> list(stream.take(3)), list(stream.take(3)), list(stream.take(9))
    ([1, 2, 3], [4, 5, 1], [2, 3, 4, 5, 1])
    >>> stream.position
    Position(round=2, offset=1)
    """

    def __init__(self, batches: Iterable[Any], seed: int, position: Position | None = None) -> None:
        self._batches, self._seed = batches, seed
        self._once = isinstance(batches, Iterator)
        self._open: Iterator[Any] | None = None
        self._length: int | None = None
        self._generators: Mapping[str, Tensor] = {}
        self.position = position if position is not None else Position()
        self.drawn = 0
        if self.position != Position():
            self._skip()

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
        at = self.position
        with self._apart():
            if self._open is None:
                self._open = iter(self._batches)
            batch = next(self._open, _END)
        if batch is not _END:
            at.offset += 1
            self.drawn += 1
            return batch
        if self._once:
            raise ObcError(
                f"the batches ended after {at.offset}: they are an iterator, which can be "
                "read only once; pass a list or a loader"
            )
        if not at.offset:
            raise ObcError("there are no batches to score with")
        self._length = at.offset
        self._open, at.round, at.offset = None, at.round + 1, 0
        return _END

    def _skip(self) -> None:
        """Open the batches and draw those before the position, which ends where it was."""
        at, target = self.position, self.position.model_copy()
        at.offset = 0
        # A loader with a generator of its own has to go through all the rounds before.
        at.round = target.round if getattr(self._batches, "generator", None) is None else 0
        while at != target:
            self._draw()

    @contextmanager
    def _apart(self) -> Iterator[None]:
        with randomness.kept():
            if self._open is None:
                randomness.seed(self._seed * 1_000_003 + self.position.round)
            else:
                randomness.restore(self._generators)
            try:
                yield
            finally:
                self._generators = randomness.capture()


_END = object()
