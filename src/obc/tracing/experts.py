"""Experts that are modules of a list: which list a router picks from, and what its modules share.

Code calls such modules one by one, by number, on the rows that were picked for them; no flow of
ids shows that. So what ran is compared with what was picked: where each module of a list got the
rows that its number was picked for, whole modules go with the channels of the router, and values
prove it when the sites are cut. The inner channels of such modules go alike, as those of experts
in one stacked weight do, so that what is left costs the same whichever experts go.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from obc.running.modules import tensors_of, walk
from obc.tracing.flow import Flow
from obc.tracing.ledger import Listed, Pick, Reason
from obc.tracing.members import Member
from obc.tracing.solve import Classes, base_classes

Moves = Mapping[str, str | None]
"""Where modules of lists are after a cut, by their paths before; None where they are gone."""

_COUNTS = re.compile(r"(num|n|nb)_((?!shared)[a-z]+_)*experts?")
_NUMBERED = re.compile(r"(.*?)(\d+)")


def follow(flow: Flow, model: nn.Module) -> None:
    """Let whole modules of a list go with the channels by which a router picks among them."""
    picks = [p for p in flow.ledger.picks if not p.followed and len(p.times) > p.count]
    if not picks:
        return
    lists = list(_lists(model))
    base = base_classes(flow.ledger)
    stays = torch.zeros(flow.ledger.size, dtype=torch.bool)
    for ids, _ in flow.ledger.frozen:
        stays[base[ids]] = True
    for pick in picks:
        if stays[base[pick.ids]].any():
            continue  # then nothing is won by coupling what the experts have inside
        for layer, keys in lists:
            rows = [pick.rows.get(path, 0) for path in paths(layer, keys)]
            around = within(f"{pick.place.module}.", paths(layer, keys))
            if len(rows) != len(pick.times) or not any(rows) or around is not None:
                continue  # what was running already is not what was picked
            if _as_picked(rows, pick.times):
                _join(flow, model, pick, layer, keys)
            else:
                pick.reason = Reason(
                    f"the modules of '{layer}' run on other rows than are picked for them",
                    pick.place,
                )


def _lists(model: nn.Module) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Modules that others hold under numbers from 0 on: "0" and "1", or "expert_0" and so on."""
    for path, module in walk(model):
        groups: dict[str, list[str]] = {}
        for key in module._modules:
            match = _NUMBERED.fullmatch(key)
            if match and match[2] == str(len(groups.setdefault(match[1], []))):
                groups[match[1]].append(key)
        for keys in groups.values():
            if len(keys) > 1:
                yield path, tuple(keys)


def _as_picked(rows: Sequence[int], times: Sequence[int]) -> bool:
    """Whether each module got as many rows as its number was picked, or what a limit left of them.

    >>> _as_picked([3, 0, 2], [3, 0, 4]), _as_picked([3, 2, 0], [3, 0, 2])
    (True, False)
    """
    return all(0 < n <= most if most else not n for n, most in zip(rows, times, strict=True))


def _join(flow: Flow, model: nn.Module, pick: Pick, layer: str, keys: tuple[str, ...]) -> None:
    known = next((x for x in flow.ledger.lists if (x.layer, x.keys) == (layer, keys)), None)
    why = "" if known is not None else _unlike(flow, model, layer, keys)
    if why:
        pick.reason = Reason(f"the modules of '{layer}' {why}, so that whole ones stay", pick.place)
        return
    pick.followed = True
    if known is not None:  # it runs once more: in train mode, say
        flow.ledger.tie(known.ids, pick.ids, pick.place)
        return
    listed = Listed(layer, keys, pick.ids, pick.place)
    flow.ledger.lists.append(listed)
    flow.ledger.mark("read", pick.ids)
    couple(flow, model, listed)


def _unlike(flow: Flow, model: nn.Module, layer: str, keys: Sequence[str]) -> str:
    """What keeps modules from standing in for each other, if anything does."""
    others = [p for x in flow.ledger.lists for p in paths(x.layer, x.keys)]
    inside = [f"{p}." for p in paths(layer, keys)]
    if any(f"{p}.".startswith((*inside,)) or inside[0].startswith(f"{p}.") for p in others):
        return "lie in those of another list, or hold them"
    first: dict[str, Any] | None = None
    for path in paths(layer, keys):
        modules = walk(model.get_submodule(path))
        tensors = tensors_of(modules)
        shared = next((n for n, t in tensors.items() if flow.name(t) != f"{path}.{n}"), None)
        if shared is not None or not tensors:
            return f"share '{shared}'" if shared is not None else "hold no weights"
        now: dict[str, Any] = {f"{name} ": type(module) for name, module in modules}
        now |= {n: (type(t), t.dtype, tuple(t.shape)) for n, t in tensors.items()}
        first = now if first is None else first
        other = next((n for n in {**first, **now} if first.get(n) != now.get(n)), None)
        if other is not None:
            return f"differ in {other.strip() or 'class'}"
    return ""


def couple(flow: Flow, model: nn.Module, listed: Listed) -> None:
    """Tie what the modules of a list have inside, and let it play the same parts.

    A module that got no rows is known by the others.
    """
    held, ledger = model.get_submodule(listed.layer)._modules, flow.ledger
    modules = [module for key in listed.keys if (module := held.get(key)) is not None]
    inside = [tensors_of(walk(module)) for module in modules]
    for tensors in inside:
        for tensor in tensors.values():
            flow.of(tensor)
    flags = {role: ledger.marked(role) for role in ledger.roles}
    for name in inside[0]:
        leaves = [flow.leaves[id(tensors[name])] for tensors in inside]
        for dims in zip(*(leaf.dims for leaf in leaves), strict=True):
            first, *others = [ids for ids in dims if ids is not None] or [torch.zeros(0).long()]
            for ids in others:
                ledger.tie(first, ids, listed.place)
            rows = torch.stack([first, *others])
            for role, flag in flags.items():
                part = flag[rows].any(0)
                if part.any():
                    ledger.mark(role, rows[:, part].reshape(-1))


def paths(layer: str, keys: Iterable[str]) -> list[str]:
    """The paths of the modules that a module holds under these keys."""
    return [f"{layer}.{key}" if layer else key for key in keys]


def fold(members: Sequence[Member], lists: Sequence[Listed]) -> list[Member]:
    """One member in place of those in all modules of a list, which own the same positions."""
    of = {path: x for x in lists for path in paths(x.layer, x.keys)}
    if not of:
        return list(members)
    result: dict[tuple[str, int], Member] = {}
    for m in members:
        inside = within(m.name, of)
        if inside is not None:
            x, rest = of[inside], m.name.removeprefix(inside)
            m = Member(x.layer, f"*{rest}", m.dim + 1, m.role, m.index, x.keys)
        result.setdefault((m.name, m.dim), m)
    return list(result.values())


def within(name: str, modules: Container[str]) -> str | None:
    """Which of these modules holds a parameter or a module of this name.

    >>> within("moe.10.up.weight", {"moe.1", "moe.10"})
    'moe.10'
    """
    parts = name.split(".")
    around = (".".join(parts[:end]) for end in range(1, len(parts)))
    return next((path for path in around if path in modules), None)


def whole(model: nn.Module, listed: Listed) -> list[Member]:
    """The members of a site by which whole modules of a list go with its channels."""
    first = paths(listed.layer, listed.keys[:1])[0]
    index = torch.arange(len(listed.keys)).unsqueeze(1)
    return [
        Member(listed.layer, f"*.{name}", 0, "in", index, listed.keys)
        for name, tensor in tensors_of(walk(model.get_submodule(first))).items()
        if isinstance(tensor, nn.Parameter)
    ]


def counting(model: nn.Module, listed: Listed, router: str) -> tuple[str, ...]:
    """Attributes, such as `num_experts`, by which modules around a list and its router count it.

    A loop over the list may do without: then no run shows that they have to follow.
    """
    ways = [_upwards(listed.layer), _upwards(router)]
    around = max((path for path in ways[0] if path in ways[1]), key=len)
    near = dict.fromkeys(path for way in ways for path in way if len(path) >= len(around))
    return tuple(
        f"{path}.{name}" if path else name
        for path in near
        for name, value in vars(model.get_submodule(path)).items()
        if type(value) is int and value == len(listed.keys) and _COUNTS.fullmatch(name)
    )


def _upwards(path: str) -> list[str]:
    """A module and those around it."""
    parts = path.split(".") if path else []
    return [".".join(parts[:end]) for end in range(len(parts), -1, -1)]


def moves(old: Sequence[str], kept: Iterable[int]) -> dict[str, str | None]:
    """Where the modules of a list are when these are kept.

    >>> moves(["moe.0", "moe.1", "moe.2"], [0, 2])
    {'moe.0': 'moe.0', 'moe.1': None, 'moe.2': 'moe.1'}
    """
    places: dict[str, str | None] = dict.fromkeys(old)
    for new, number in enumerate(kept):
        places[old[number]] = old[new]
    return places


def moved(name: str, where: Moves) -> str | None:
    """The name of a module, a parameter or an attribute after a cut; None if it is gone.

    >>> moved("moe.2.up.weight", {"moe.1": None, "moe.2": "moe.1"})
    'moe.1.up.weight'
    """
    if not where:
        return name
    parts, new = name.split("."), name
    for end in range(len(parts), 0, -1):  # lists in modules of lists before these
        old = ".".join(parts[:end])
        if old in where:
            place = where[old]
            if place is None:
                return None
            new = place + new[len(old) :]
    return new


def drop(model: nn.Module, layer: str, keys: Sequence[str], kept: Iterable[int]) -> None:
    """Take modules out of a list; those behind them move up."""
    held = model.get_submodule(layer)._modules
    stay = [held[keys[number]] for number in kept]
    new = dict(zip(keys, stay, strict=False))
    items = [(key, new.get(key, module)) for key, module in held.items()]
    gone = set(keys) - new.keys()
    held.clear()
    held.update({key: module for key, module in items if key not in gone})


def scattered(lists: Iterable[Listed], classes: Classes) -> list[tuple[Tensor, Reason]]:
    """Channels that stay since not every module of a list can go by itself."""
    apart = []
    for listed in lists:
        held = classes.frozen(listed.ids)
        alone = classes.of[listed.ids].unique().numel() == len(listed.ids)
        if not held.all() and (held.any() or not alone):
            apart.append((listed.ids, Reason("experts of a list go one by one", listed.place)))
    return apart


def among(ids: Tensor, kept: Tensor) -> list[int]:
    """Which of these ids are kept, by number."""
    numbers: list[int] = kept[ids].nonzero().reshape(-1).tolist()
    return numbers
