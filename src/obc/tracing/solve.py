"""From ties, freezes and choices to classes: the ids that go or stay together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from obc.tracing.ledger import Choice, Ledger, Option, Pairs, Reason


@dataclass
class Classes:
    """For each id its class (the smallest id in it); for each class why it is frozen, if it is."""

    of: Tensor
    why: Tensor  # index into reasons, -1 for free, by id of the class
    reasons: list[Reason]
    taken: dict[int, int]  # choice -> option

    def frozen(self, ids: Tensor) -> Tensor:
        return self.why[self.of[ids]] >= 0


def components(of: Tensor, pairs: Iterable[Pairs]) -> Tensor:
    """Merge classes along pairs of ids; each class is called by its smallest id.

    >>> components(torch.arange(5), [(torch.tensor([0, 3]), torch.tensor([3, 4]))])
    tensor([0, 1, 2, 0, 0])
    """
    return _merge(of.clone(), pairs)


def _merge(of: Tensor, pairs: Iterable[Pairs]) -> Tensor:
    """The same in place."""
    # Pair after pair, since each is short and stays in the processor's cache.
    for a, b in pairs:
        while True:
            left, right = _ends(of, a), _ends(of, b)
            low, high = torch.minimum(left, right), torch.maximum(left, right)
            of.scatter_reduce_(0, high, low, "amin")
            if torch.equal(of.index_select(0, high), low):  # no end had to go two ways
                break
    for part in of.split(2**14):  # links lead to lower ids, which are at their ends by then
        part.copy_(_ends(of, part))
    return of


def _ends(of: Tensor, ids: Tensor) -> Tensor:
    """Follow the links to their ends; an id that is its own link is one."""
    here = of.index_select(0, ids)  # several times as fast as of[ids]
    while True:
        further = of.index_select(0, here)
        if torch.equal(further, here):
            return here
        here = further


def base_classes(ledger: Ledger) -> Tensor:
    """Classes from what the run itself tied, before any choice."""
    return _merge(ledger.ranges(), ledger.ties())


def solve(ledger: Ledger, base: Tensor, more: list[tuple[Tensor, Reason]]) -> Classes:
    """Settle every choice and say what is free; `more` are ids frozen for reasons of the caller."""
    of = base
    frozen = [*ledger.frozen, *more]
    taken: dict[int, int] = {}
    open_choices = []
    for i, choice in enumerate(ledger.choices):
        held = next((j for j, o in _allowed(choice) if _holds(of, o)), None)
        if held is None:
            open_choices.append(i)
        else:
            taken[i] = held
    for i in open_choices:
        choice = ledger.choices[i]
        taken[i] = len(choice.options)
        for j, option in _allowed(choice):
            merged = components(of, option.pairs)
            if merged[choice.ids].unique().numel() > 1:  # else one unit is left: as good as frozen
                taken[i], of = j, merged
                break
    for i, j in taken.items():
        choice = ledger.choices[i]
        if j == len(choice.options):
            frozen.append((choice.ids, choice.reason))
        else:
            stay = (*choice.options[j].freeze, *choice.options[j].meeting)
            frozen += [(ids, choice.reason) for ids in stay]
    reasons: list[Reason] = []
    why = torch.full((ledger.size,), -1, dtype=torch.int32)
    for ids, reason in frozen:
        ids = ids[ids >= 0]
        roots = of.index_select(0, ids.reshape(-1))
        roots = roots[why[roots] < 0]
        if roots.numel():
            why[roots] = len(reasons)
            reasons.append(reason)
    return Classes(of, why, reasons, taken)


def _allowed(choice: Choice) -> list[tuple[int, Option]]:
    return [(j, o) for j, o in enumerate(choice.options) if j not in choice.ruled_out]


def _holds(of: Tensor, option: Option) -> bool:
    """Whether what an option asks for is tied already; one that only freezes is a last resort."""
    if option.freeze and not option.ties:
        return False
    return all(_alike(of, a[:8], b[:8]) and _alike(of, a, b) for a, b in option.pairs)


def _alike(of: Tensor, a: Tensor, b: Tensor) -> bool:
    return torch.equal(of.index_select(0, a), of.index_select(0, b))
