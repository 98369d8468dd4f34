"""Axes of a figure: from values to places, with round numbers at the ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_DECADES = 1.7  # values that span more than this many powers of ten are drawn on a log axis


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high` go to places from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The place of a value; one beyond the ends is put there.

        >>> Axis(0, 10, 100, 200).at(5)
        150.0
        >>> Axis(1, 100, 0, 10, log=True).at(10)
        5.0
        """
        low, high = self._flat(self.low), self._flat(self.high)
        share = (self._flat(value) - low) / (high - low)
        return round(self.start + min(max(share, 0.0), 1.0) * (self.end - self.start), 2)

    def _flat(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.log else value

    def ticks(self, about: int = 5, whole: bool = False) -> list[tuple[float, str]]:
        """Places and labels of round values, or of whole numbers only.

        >>> Axis(0, 98, 0, 1).ticks()
        [(0.0, '0'), (0.2, '20'), (0.41, '40'), (0.61, '60'), (0.82, '80')]
        """
        values = self._powers(about) if self.log else self._multiples(about, whole)
        return [(self.at(v), short(v)) for v in values]

    def _multiples(self, about: int, whole: bool) -> list[float]:
        step = max(_round_step((self.high - self.low) / about), 1.0 if whole else 0.0)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [n * step for n in range(first, last + 1)]

    def _powers(self, about: int) -> list[float]:
        first = math.ceil(math.log10(self.low) - 1e-9)
        last = math.floor(math.log10(self.high) + 1e-9)
        if last <= first:
            return [self.low, self.high]
        step = math.ceil((last - first + 1) / about)
        return [10.0**n for n in range(first, last + 1, step)]


def fitting(
    values: Iterable[float], start: float, end: float, *, zero: bool = False, log: bool = False
) -> Axis:
    """An axis with room for all values; with `log` logarithmic if they span several decades."""
    numbers = list(values)
    low, high = min(numbers), max(numbers)
    if log and spans_decades(numbers):
        return Axis(
            10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high)), start, end, True
        )
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= 1e-9 * max(abs(high), abs(low)):  # one value: leave it in the middle
        room = abs(high) / 10 or 1.0
        low, high = low - (0.0 if zero and low == 0 else room), high + room
    step = _round_step((high - low) / 5)
    return Axis(
        math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, start, end
    )


def spans_decades(values: Iterable[float]) -> bool:
    """Whether a logarithmic axis shows more of these values.

    >>> spans_decades([0.1, 1]), spans_decades([0.01, 10]), spans_decades([0, 10])
    (False, True, False)
    """
    numbers = list(values)
    return min(numbers) > 0 and math.log10(max(numbers) / min(numbers)) > _DECADES


def _round_step(least: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(f * power for f in (1, 2, 5, 10) if f * power >= least * (1 - 1e-9))


def short(value: float) -> str:
    """A number for a tick or a table.

    >>> [short(v) for v in (0, 20, 0.30000000000000004, 1234567, 2.5e9, 1e-5, 12500)]
    ['0', '20', '0.3', '1.23 M', '2.5 G', '1e-5', '12.5 k']
    """
    size = abs(value)
    for least, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= least:
            scaled = value / (1e3 if unit == "k" else least)
            return f"{scaled:.3g} {unit}" if abs(scaled) < 1e3 else f"{value:.2e}"
    if size and size < 1e-3:
        mantissa, _, power = f"{value:.2e}".partition("e")
        return f"{float(mantissa):g}e{int(power)}"
    return f"{value:.4g}"
