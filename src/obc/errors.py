"""The one kind of error this library raises on purpose: what was wrong, where, what would work."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable

# Which section of docs/refused.md explains the errors of a room, or of one file in it.
_SECTIONS = {
    "tracing": "the-model",
    "running": "the-model",
    "running.checks": "options",
    "running.difference": "the-proof",
    "running.onnx": "exports",
    "running.runtimes": "exports",
    "models": "the-model",
    "criteria": "batches-and-loss",
    "criteria.criterion": "options",
    "criteria.jacobian": "options",
    "criteria.reduce": "options",
    "tasks": "data",
    "data": "data",
    "costs": "targets",
    "costs.counting": "the-model",
    "search": "targets",
    "search.ranking": "batches-and-loss",
    "search.resume": "files",
    "search.settings": "options",
    "search.stream": "batches-and-loss",
    "planning": "targets",
    "plans": "the-plan",
    "surgery": "the-proof",
    "surgery.optimizer": "tuning",
    "recalibration": "recalibration",
    "equivalent": "equivalent-pruning",
    "tuning": "tuning",
    "files": "files",
    "files.export": "exports",
    "files.gguf": "exports",
    "files.hugging": "exports",
    "files.inputs": "exports",
    "files.modelling": "exports",
    "disk": "files",
}


class ObcError(ValueError):
    """Bad input or a model that cannot be handled; the model is as it was before the call.

    A traceback (of Python 3.11 or newer) ends with the section of the documentation that explains
    what was refused: `section`, or else that of the file or the room whose code raised the error.
    """

    def __init__(self, *args: object, section: str | None = None) -> None:
        super().__init__(*args)
        section = section or _section(str(sys._getframe(1).f_globals.get("__name__")))
        if section is not None:
            self.__notes__ = [f"docs/refused.md#{section} says more"]


def _section(module: str) -> str | None:
    """What explains the errors of a module: its file's section, or its room's.

    >>> _section("obc.search.stream"), _section("obc.search.landing"), _section("plugin.search")
    ('batches-and-loss', 'targets', None)
    """
    package, _, path = module.partition(".")
    if package != "obc":
        return None
    return _SECTIONS.get(path) or _SECTIONS.get(path.partition(".")[0])


def closest(name: str, names: Iterable[str]) -> str:
    """The tail of an error about an unknown name.

    >>> closest("layer9.conv1", ["layer3.conv1", "fc"])
    "; did you mean 'layer3.conv1'?"
    >>> closest("zzz", ["fc"])
    ''
    """
    matches = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean '{matches[0]}'?" if matches else ""
