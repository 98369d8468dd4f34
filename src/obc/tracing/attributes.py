"""Numbers that the user's modules keep, such as `num_heads`, and that may count channels."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from obc.tracing.sites import Site

_COUNTS_HEADS = re.compile(r"head(?!_)(?!.*(dim|size|per|group))", re.IGNORECASE)
_Fits = Callable[[str, int, Site], bool]


def candidates(
    model: nn.Module, group: list[Site], kind: type[nn.Module]
) -> Iterator[tuple[tuple[str, ...], ...]]:
    """For each site of a group the attributes that may have to follow it, likeliest sets first.

    Only modules of one kind are looked at, those around the site's layers.
    """
    paths = [n for n, m in model.named_modules() if type(m) is kind]
    numbers_of = [list(_numbers(model, site, paths)) for site in group]

    def pick(fits: _Fits) -> tuple[tuple[str, ...], ...]:
        return tuple(
            tuple(path + name for path, name, value in numbers if fits(name, value, site))
            for site, numbers in zip(group, numbers_of, strict=True)
        )

    def likely(name: str, value: int, site: Site) -> bool:
        return _is_width(name, value, site) or _counts_heads(name, value, site)

    for fits in (likely, _is_width, _counts_heads):
        yield pick(fits)
    for only in dict.fromkeys(
        name for _, name, value in numbers_of[0] if likely(name, value, group[0])
    ):
        yield pick(lambda name, value, site, only=only: name == only and value % site.size == 0)  # type: ignore[misc]


def _is_width(name: str, value: int, site: Site) -> bool:
    return value == site.size or value in {m.index.numel() for m in site.members}


def _counts_heads(name: str, value: int, site: Site) -> bool:
    return bool(_COUNTS_HEADS.search(name)) and value % site.size == 0


def _numbers(model: nn.Module, site: Site, paths: list[str]) -> Iterator[tuple[str, str, int]]:
    """Whole numbers of the modules around a site and of their configurations."""
    layers = {name[: name.rfind(".") + 1] for m in site.members for name in m.names}
    for path in paths:
        prefix = f"{path}." if path else ""
        if not any(layer.startswith(prefix) for layer in layers):
            continue
        module = model.get_submodule(path)
        for where, owner in (("", module), ("config.", getattr(module, "config", None))):
            for name, value in getattr(owner, "__dict__", {}).items():
                for item, number in _items(name, value):
                    if type(number) is int and number > 1:
                        yield prefix, where + item, number


def _items(name: str, value: Any) -> list[tuple[str, Any]]:
    """A value under its name, or what a short list holds: "splits[0]", "splits[1]"."""
    if isinstance(value, (list, tuple)):
        return [(f"{name}[{i}]", item) for i, item in enumerate(value)] if len(value) < 9 else []
    return [(name, value)]


def read(owner: Any, key: str) -> int:
    """The number of this name; "splits[1]" is the second of a list."""
    name, _, place = key.partition("[")
    value = getattr(owner, name)
    number: int = value[int(place[:-1])] if place else value
    return number


def write(owner: Any, key: str, number: int) -> None:
    """Set it; a list is replaced, for others may hold it too."""
    name, _, place = key.partition("[")
    if place:
        items = list(getattr(owner, name))
        items[int(place[:-1])] = number
        setattr(owner, name, type(getattr(owner, name))(items))
    else:
        setattr(owner, name, number)
