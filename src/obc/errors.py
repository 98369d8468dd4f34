"""The one kind of error this library raises on purpose: what was wrong, where, what would work."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ObcError(ValueError):
    """Bad input or a model that cannot be handled; the model is as it was before the call."""


def closest(name: str, names: Iterable[str]) -> str:
    """The tail of an error about an unknown name.

    >>> closest("layer9.conv1", ["layer3.conv1", "fc"])
    "; did you mean 'layer3.conv1'?"
    >>> closest("zzz", ["fc"])
    ''
    """
    matches = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean '{matches[0]}'?" if matches else ""
