"""Writing a file that people open: whole, or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from obc.errors import ObcError


def write(path: Path, fill: Callable[[IO[bytes]], Any]) -> None:
    """Write aside, then rename; what was there before stays if it cannot be written."""
    aside = None
    try:
        handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        with os.fdopen(handle, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o644)  # a page is shown to others; mkstemp lets nobody read it
        os.replace(aside, path)
    except OSError as error:
        raise ObcError(f"{path} cannot be written: {error}") from None
    finally:
        if aside is not None:
            Path(aside).unlink(missing_ok=True)
