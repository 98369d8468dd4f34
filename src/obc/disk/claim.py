"""A claim on a folder: what it is for, written down, so that only the same work goes on in it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from obc.disk.reading import read_bytes
from obc.disk.writing import write_json
from obc.errors import ObcError

FILE = "about.json"
ADVICE = "choose another folder"


def make(folder: str | os.PathLike[str], advice: str = ADVICE) -> Path:
    """The folder, made with its parents if it is not there."""
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        next(path.iterdir(), None)
    except OSError as error:
        raise ObcError(f"{folder} is no folder that can be written to: {error}; {advice}") from None
    return path


def claim(
    folder: str | os.PathLike[str],
    facts: Mapping[str, Any],
    file: str = FILE,
    advice: str = ADVICE,
) -> None:
    """Write down what a folder is for, or see that it is for this; refuse any other.

    The facts are JSON values; one that is None counts as not given.

    >>> import tempfile
    >>> place = tempfile.mkdtemp()
    >>> claim(place, {"command": "prune", "target": "macs=2x"})
    >>> claim(place, {"command": "prune", "target": "macs=2x"})
    >>> claim(place, {"command": "prune", "target": "macs=3x"})
    Traceback (most recent call last):
    obc.errors.ObcError: ... holds another run: its target is 'macs=2x', not 'macs=3x'; ...
    """
    path = make(folder, advice) / file
    here = json.loads(json.dumps({k: v for k, v in facts.items() if v is not None}, default=str))
    if path.is_file():
        check_same(folder, _read(path, advice), here, advice)
    elif any(not other.name.startswith(f".{file}-") for other in path.parent.iterdir()):
        raise ObcError(f"{folder} holds files but no run of this kind; {advice}")
    else:
        write_json(path, here)


@contextmanager
def claimed(
    folder: str | os.PathLike[str],
    facts: Mapping[str, Any],
    file: str = FILE,
    advice: str = ADVICE,
) -> Iterator[None]:
    """Work in a folder; if an error comes before anything was done there, it is free again."""
    claim(folder, facts, file, advice)
    try:
        yield
    except ObcError:
        if not any(f.is_file() and f.name != file for f in Path(folder).rglob("*")):
            shutil.rmtree(folder, ignore_errors=True)
        raise


def check_same(
    place: str | os.PathLike[str],
    there: Mapping[str, Any],
    here: Mapping[str, Any],
    advice: str = ADVICE,
) -> None:
    """Refuse a place whose facts are not those at hand; the error names the first that differs."""
    for key in (*here, *(k for k in there if k not in here)):
        if there.get(key) != here.get(key):
            raise ObcError(
                f"{place} holds another run: its {key} is {there.get(key)!r}, "
                f"not {here.get(key)!r}; {advice}"
            )


def _read(path: Path, advice: str) -> dict[str, Any]:
    try:
        facts = json.loads(read_bytes(path, "a claim"))
    except ValueError as error:
        if isinstance(error, ObcError):
            raise
        raise ObcError(f"{path} cannot be read: {error}; {advice}") from None
    if not isinstance(facts, dict):
        raise ObcError(f"{path} is not what obc wrote there; {advice}")
    return facts
