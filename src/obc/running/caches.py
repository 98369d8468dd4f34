"""Caches: tensors that modules keep beside parameters and buffers, and make anew when missing.

LeViT, for one, indexes its attention biases once and keeps the result. Such a tensor is neither
cut nor loaded with the weights it came from, so it has to go before either.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from obc.running.forward import forward
from obc.running.modules import walk
from obc.running.snapshot import Snapshot, unchanged

_Place = tuple[nn.Module, str]


def held_tensors(model: nn.Module) -> list[_Place]:
    """Attributes that hold tensors which are neither parameters nor buffers."""
    plain = nn.Module().__dict__.keys()
    return [
        (module, key)
        for _, module in walk(model)
        for key, value in vars(module).items()
        if key not in plain and _holds(value)
    ]


def empty_caches(model: nn.Module, example: Any) -> bool:
    """Empty what a run fills again; what it renews anyway, or cannot do without, stays.

    Returns whether there may have been any such.
    """
    places = held_tensors(model)
    if not places:
        return False
    for module, key in _remade(model, example, _lasting(model, example, places)):
        _empty(module, key)
    return True


def _lasting(model: nn.Module, example: Any, places: list[_Place]) -> list[_Place]:
    """Those that a run leaves as they are; all, where they make it fail."""
    try:
        values = _after(model, example, places)
    except Exception:
        return places
    pairs = zip(places, values, strict=True)
    return [(module, key) for (module, key), value in pairs if value is vars(module)[key]]


@contextmanager
def cold(model: nn.Module, example: Any) -> Iterator[Snapshot]:
    """A model without its caches inside, with a snapshot of that; afterwards it is as it was."""
    before = Snapshot(model)
    with before:
        yield Snapshot(model) if empty_caches(model, example) else before


def _remade(model: nn.Module, example: Any, places: list[_Place]) -> list[_Place]:
    """Those that are filled again; where a run fails without all of them, one after the other."""
    try:
        values = _after(model, example, places, missing=places)
    except Exception:
        if len(places) < 2:
            return []
        return [cache for place in places for cache in _remade(model, example, [place])]
    return [place for place, value in zip(places, values, strict=True) if _holds(value)]


def _after(
    model: nn.Module, example: Any, places: list[_Place], missing: list[_Place] | None = None
) -> list[Any]:
    """What is in these places after a run; the model is as it was."""
    with unchanged(model):
        for module, key in missing or ():
            _empty(module, key)
        forward(model, example)
        return [vars(module).get(key) for module, key in places]


def _empty(module: nn.Module, key: str) -> None:
    value = vars(module)[key]
    vars(module)[key] = None if isinstance(value, Tensor) else type(value)()


def _holds(value: Any) -> bool:
    if isinstance(value, dict):
        return any(isinstance(v, Tensor) for v in value.values())
    if isinstance(value, list):
        return any(isinstance(v, Tensor) for v in value)
    return isinstance(value, Tensor)
