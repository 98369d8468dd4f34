"""The one kind of error this library raises on purpose: what was wrong, where, what would work."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable

# Which section of docs/refused.md explains the errors of a room.
_SECTIONS = {
    "tracing": "the-model",
    "running": "the-model",
    "models": "the-model",
    "criteria": "batches-and-loss",
    "tasks": "batches-and-loss",
    "data": "batches-and-loss",
    "costs": "targets",
    "search": "targets",
    "planning": "targets",
    "plans": "the-plan",
    "surgery": "the-proof",
    "recalibration": "recalibration",
    "equivalent": "equivalent-pruning",
    "tuning": "tuning",
    "files": "files",
    "disk": "files",
}


class ObcError(ValueError):
    """Bad input or a model that cannot be handled; the model is as it was before the call.

    A traceback (of Python 3.11 or newer) ends with the section of the documentation that explains
    what was refused: that of the room whose code raised the error.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        package, _, module = str(sys._getframe(1).f_globals.get("__name__")).partition(".")
        section = _SECTIONS.get(module.partition(".")[0])
        if package == "obc" and section is not None:
            self.__notes__ = [f"docs/refused.md#{section} says more"]


def closest(name: str, names: Iterable[str]) -> str:
    """The tail of an error about an unknown name.

    >>> closest("layer9.conv1", ["layer3.conv1", "fc"])
    "; did you mean 'layer3.conv1'?"
    >>> closest("zzz", ["fc"])
    ''
    """
    matches = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean '{matches[0]}'?" if matches else ""
