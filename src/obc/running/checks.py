"""Arguments of more than one verb, refused in one sentence where they are of the wrong kind."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from obc.errors import ObcError


def names(argument: str, given: object, of: str) -> list[str]:
    """One name, or several, as a list.

    >>> names("ignore", "head", "a layer"), names("ignore", ("a", "b*"), "a layer")
    (['head'], ['a', 'b*'])
    """
    if isinstance(given, str):
        return [given]
    listed: list[Any] = list(given) if isinstance(given, Iterable) else [None]
    if not all(isinstance(name, str) for name in listed):
        raise ObcError(f"{argument} is the name of {of}, or a list of them, not {given!r}")
    return listed


def check_whole(argument: str, value: object, least: int | None = None) -> None:
    """Refuse what is no whole number, or below the least one."""
    fits = isinstance(value, int) and not isinstance(value, bool)
    if not fits or (least is not None and value < least):  # type: ignore[operator]
        floor = "" if least is None else f" from {least}"
        raise ObcError(f"{argument} is a whole number{floor}, not {value!r}")


def check_number(argument: str, value: object) -> None:
    """Refuse what is no number, whole or not."""
    if not isinstance(value, (int, float)):
        raise ObcError(f"{argument} is a number, not {value!r}")


def check_flag(argument: str, value: object) -> None:
    """Refuse what is neither true nor false; a tensor, say, may be both."""
    if not isinstance(value, bool):
        raise ObcError(f"{argument} is True or False, not {value!r}")


def check_batches(batches: object) -> None:
    """Refuse what no batches can be taken from."""
    items = hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")
    if not items or isinstance(batches, (str, bytes)):
        raise ObcError(
            f"batches are a list or a loader, not {batches!r}", section="batches-and-loss"
        )


def check_function(argument: str, value: object, *, batch: bool = True) -> None:
    """Refuse what cannot be called with a model, and a batch.

    >>> check_function("loss", lambda batch: 0.0)
    Traceback (most recent call last):
    obc.errors.ObcError: loss is a function of a model and a batch, not <function <lambda>...
    """
    takes = "a model and a batch" if batch else "a model"
    if not callable(value) or not _takes(value, 1 + batch):
        raise ObcError(
            f"{argument} is a function of {takes}, not {value!r}", section="batches-and-loss"
        )


def _takes(function: Any, count: int) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # one written in C may have none
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True
