"""Evidence that outlives its step: the more has gone since, the less it counts."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

HALF = 0.01
"""When so large a share of all channels has gone, what was seen before counts half.

Chosen on the digits, tried on CIFAR-10: docs/planning.md. What is left becomes more important as
its neighbours go, so a longer memory is wrong in one direction, and a shorter one is noisy.
"""


class Carried:
    """A running sum of scores over rows, and how many rows it stands for.

    >>> from torch import tensor
    >>> carried = Carried(share=0.75, rows=8)
    >>> carried.fresh, carried.joined({"a": tensor([8.0, 16.0, 24.0])}, 8)
    (8, {'a': tensor([ 8., 16., 24.])})
    >>> carried.follow({"a": tensor([0, 2])}, gone=HALF)
    >>> carried.fresh, carried.joined({"a": tensor([2.0, 12.0])}, 2)
    (2, {'a': tensor([ 8., 32.])})

    Four rows' worth of 1 and 3 is left, two fresh rows add 2 and 12; six rows stand for eight.
    """

    def __init__(self, share: float, rows: int) -> None:
        self.share, self.rows = share, rows
        self.sums: dict[str, Tensor] = {}
        self.weight = 0.0

    @property
    def fresh(self) -> int:
        """How many rows the next step takes: all, or what is not carried."""
        return max(1, round(self.rows * (1 - self.share))) if self.sums else self.rows

    def joined(self, found: Mapping[str, Tensor], rows: int) -> dict[str, Tensor]:
        """Fresh sums over so many rows together with what is carried, as if over all rows."""
        if not self.share:
            return dict(found)
        if not self.sums:
            self.rows = rows  # there may be fewer than were asked for
        self.sums = {n: own + self.sums[n] if self.sums else own for n, own in found.items()}
        self.weight += rows
        return {n: own * (self.rows / self.weight) for n, own in self.sums.items()}

    def follow(self, places: Mapping[str, Tensor], gone: float) -> None:
        """The places of channels that stayed, where some went; `gone` is their share of all."""
        age = 0.5 ** (gone / HALF)
        self.weight *= age
        self.sums = {
            n: age * (own[places[n]] if n in places else own) for n, own in self.sums.items()
        }

    def forget(self) -> None:
        self.sums, self.weight = {}, 0.0
