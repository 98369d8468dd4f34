"""A folder that a command works in: made, or the same command's from last time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from obc.errors import ObcError
from obc.tuning.checkpoint import write_json

FILE = "about.json"


@contextmanager
def claimed(folder: Path, facts: Mapping[str, Any]) -> Iterator[None]:
    """Work in a folder; if an error comes before anything was done there, it is free again."""
    claim(folder, facts)
    try:
        yield
    except ObcError:
        if not any(f.is_file() and f.name != FILE for f in folder.rglob("*")):
            shutil.rmtree(folder, ignore_errors=True)
        raise


def claim(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write down what the folder is for, or find that it is for this; refuse any other.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp())
    >>> claim(place, {"command": "prune", "target": "macs=2x"})
    >>> claim(place, {"command": "prune", "target": "macs=2x"})
    >>> claim(place, {"command": "prune", "target": "macs=3x"})
    Traceback (most recent call last):
    obc.errors.ObcError: ... holds another run: its target is 'macs=2x', not 'macs=3x'; ...
    """
    told = {key: str(value) for key, value in facts.items() if value is not None}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = next((f for f in folder.iterdir() if not f.name.startswith(f".{FILE}-")), None)
    except OSError as error:
        raise ObcError(f"{folder} cannot be written to: {error}; choose another folder") from None
    if held is None:
        write_json(folder / FILE, told)
        return
    known = _read(folder)
    for key in sorted(told.keys() | known.keys()):
        if told.get(key) != known.get(key):
            raise ObcError(
                f"{folder} holds another run: its {key} is {known.get(key)!r}, "
                f"not {told.get(key)!r}; choose another folder with --out"
            )


def _read(folder: Path) -> dict[str, Any]:
    if not (folder / FILE).is_file():
        raise ObcError(f"{folder} holds files but no run of this kind; choose another with --out")
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ObcError(f"{folder / FILE} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ObcError(f"{folder / FILE} is not what obc wrote there; choose another folder")
    return found
