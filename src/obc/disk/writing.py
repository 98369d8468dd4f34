"""Writing a file: whole, or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from obc.errors import ObcError


def write(path: str | os.PathLike[str], fill: Callable[[Path], object]) -> None:
    """Let `fill` write a file aside, then rename it; what was there before stays if it fails.

    >>> place = Path(tempfile.mkdtemp()) / "note.txt"
    >>> write(place, lambda aside: aside.write_text("whole"))
    >>> place.read_text()
    'whole'
    """
    target, aside = Path(path), None
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
        aside = Path(name)
        os.close(handle)
        fill(aside)
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        aside.chmod(0o644)  # mkstemp lets nobody else read it
        os.replace(aside, target)
    except OSError as error:
        kept = "; what was there before is kept" if target.exists() else ""
        raise ObcError(f"{target} cannot be written: {error}{kept}") from error
    finally:
        if aside is not None:
            aside.unlink(missing_ok=True)


def write_json(path: str | os.PathLike[str], facts: Any) -> None:
    """Write a small JSON file, whole or not at all."""
    text = json.dumps(facts, indent=1)
    write(path, lambda aside: aside.write_text(text, encoding="utf-8"))
