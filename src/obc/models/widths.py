"""How many channels a layer of a narrower or wider network has."""

from __future__ import annotations


def multiple_of_8(channels: float) -> int:
    """The nearest multiple of 8, or the next one where that would take more than a tenth away.

    >>> [multiple_of_8(c) for c in (3, 16.8, 24, 11.2)]
    [8, 16, 24, 16]
    """
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8
