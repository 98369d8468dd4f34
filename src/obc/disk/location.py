"""Paths as users pass them."""

from __future__ import annotations

import os
from pathlib import Path

from obc.errors import ObcError


def location(path: object, name: str = "path") -> Path:
    """A path, from a string or a path; anything else is refused.

    >>> location("runs/1").name
    '1'
    """
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise ObcError(f"{name} is a string or a pathlib.Path, not {path!r}")
    if not os.fspath(path):
        raise ObcError(f"{name} is empty; for the folder at hand, write '.'")
    return Path(path)
