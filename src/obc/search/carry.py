"""Evidence that outlives its step: the more has gone since, the less it counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, PlainSerializer, PlainValidator
from torch import Tensor

HALF = 0.01
"""When so large a share of all channels has gone, what was seen before counts half.

Chosen on the digits, tried on CIFAR-10: docs/planning.md. What is left becomes more important as
its neighbours go, so a longer memory is wrong in one direction, and a shorter one is noisy.
"""

Vector = Annotated[
    Tensor,
    PlainValidator(lambda numbers: torch.as_tensor(numbers, dtype=torch.float64)),
    PlainSerializer(lambda vector: vector.tolist(), return_type=list[float]),
]
"""Numbers of float64 that are a list in JSON."""


class Carried(BaseModel):
    """A running sum of scores over rows, part of a run's saved state.

    After a step in which the share s of all channels went, a = 2^(-s / HALF) and

        sums <- a * sums + scores of the fresh rows,    weight <- a * weight + fresh rows,

    and scores are `sums * rows / weight`: as large as if all `rows` were fresh.

    >>> from torch import tensor
    >>> carried = Carried(share=0.75, rows=8)
    >>> carried.fresh, carried.joined({"a": tensor([8.0, 16.0, 24.0])}, 8)
    (8, {'a': tensor([ 8., 16., 24.])})
    >>> carried.follow({"a": tensor([0, 2])}, gone=HALF)
    >>> carried.fresh, carried.joined({"a": tensor([2.0, 12.0])}, 2)
    (2, {'a': tensor([ 8., 32.])})

    Four rows' worth of 1 and 3 is left, two fresh rows add 2 and 12; six rows stand for eight.
    """

    model_config = ConfigDict(extra="forbid", strict=True, ser_json_inf_nan="constants")

    share: float  # of the rows that later steps do without
    rows: int  # of a whole step
    sums: dict[str, Vector] = {}
    weight: float = 0.0  # rows that the sums stand for

    @property
    def fresh(self) -> int:
        """How many rows the next step takes: all, or what is not carried."""
        return max(1, round(self.rows * (1 - self.share))) if self.sums else self.rows

    def joined(self, scores: Mapping[str, Tensor], rows: int) -> dict[str, Tensor]:
        """Fresh scores over so many rows together with what is carried, as if over all rows."""
        if not self.share:
            return dict(scores)
        if not self.sums:
            self.rows = rows  # there may be fewer than were asked for
        self.sums = {n: new + self.sums[n] if self.sums else new for n, new in scores.items()}
        self.weight += rows
        return {n: total * (self.rows / self.weight) for n, total in self.sums.items()}

    def follow(self, places: Mapping[str, Tensor], gone: float) -> None:
        """The places of channels that stayed, where some went; `gone` is their share of all."""
        age = 0.5 ** (gone / HALF)
        self.weight *= age
        self.sums = {
            n: age * (total[places[n]] if n in places else total) for n, total in self.sums.items()
        }

    def forget(self) -> None:
        """Start over: the channels are no longer those that the sums belong to."""
        self.sums, self.weight = {}, 0.0
