"""Reading JSON that may be hostile: bounded, strict, and every refusal is one clear sentence."""

from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from obc.errors import ObcError

LIMIT = 64 * 2**20  # bytes; two million channels and the story of each take half of it
Model = TypeVar("Model", bound=BaseModel)


def read_bytes(path: str | os.PathLike[str], what: str) -> bytes:
    """The content of a small regular file; links are followed, for model hubs use them."""
    try:
        # Opening a pipe would wait for somebody to write.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with open(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise ObcError(f"{path} cannot be read: it is no regular file")
            if status.st_size > LIMIT:
                raise ObcError(f"{path} has {status.st_size} bytes; {what} has at most {LIMIT}")
            return file.read(status.st_size)
    except FileNotFoundError:
        raise ObcError(f"no {what.partition(' ')[2]} at {path}") from None
    except (OSError, ValueError) as error:
        if isinstance(error, ObcError):
            raise
        raise ObcError(f"{path} cannot be read: {error}") from None


def parse(kind: type[Model], content: bytes, path: str | os.PathLike[str], what: str) -> Model:
    """An object of this kind from its JSON text; the error names the file and the entry."""
    try:
        _check_text(content)
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        problem = f"{where}: {first['msg']}"
    except (ValueError, RecursionError) as error:
        problem = str(error)
    raise ObcError(f"{Path(path)} is not {what} this version reads: {problem}")


def _check_text(content: bytes) -> None:
    """Refuse what JSON readers disagree on: repeated keys, NaN, numbers without a value."""
    json.loads(
        content.decode("utf-8"),
        object_pairs_hook=_no_repeats,
        parse_constant=_no_constant,
        parse_float=_finite,
    )


def _no_repeats(pairs: list[tuple[str, Any]]) -> None:
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"the key {key!r} stands there twice")
        seen.add(key)


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(f"{text} is too large a number")
    return 0.0
