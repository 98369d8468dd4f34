"""From ties, freezes and choices to classes: the ids that go or stay together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from obc.trace.ledger import Choice, Ledger, Option, Pairs, Reason


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
    flat = [(a.reshape(-1), b.reshape(-1)) for a, b in pairs]
    if not flat:
        return of
    a, b = (torch.cat(side) for side in zip(*flat, strict=True))
    known = (a >= 0) & (b >= 0)
    a, b = a[known], b[known]
    while True:
        left, right = of[a], of[b]
        apart = left != right
        if not apart.any():
            return of
        a, b, left, right = a[apart], b[apart], left[apart], right[apart]
        low = torch.minimum(left, right)
        root = torch.arange(of.numel())
        root.scatter_reduce_(0, torch.maximum(left, right), low, "amin")
        while True:  # follow the links to their ends
            further = root[root]
            if torch.equal(further, root):
                break
            root = further
        of = root[of]


def base_classes(ledger: Ledger) -> Tensor:
    """Classes from what the run itself tied, before any choice."""
    return components(torch.arange(ledger.size), [ledger.ties()])


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
            merged = components(of, option.ties)
            if merged[choice.ids].unique().numel() > 1:  # else one unit is left: as good as frozen
                taken[i], of = j, merged
                break
    for i, j in taken.items():
        choice = ledger.choices[i]
        if j == len(choice.options):
            frozen.append((choice.ids, choice.reason))
        else:
            stay = (*choice.options[j].freeze, *_meets_fixed(choice.options[j]))
            frozen += [(ids, choice.reason) for ids in stay]
    reasons: list[Reason] = []
    why = torch.full((ledger.size,), -1)
    for ids, reason in frozen:
        ids = ids[ids >= 0]
        roots = of[ids.reshape(-1)]
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
    for a, b in option.ties:
        known = (a >= 0) & (b >= 0)
        if not torch.equal(of[a[known]], of[b[known]]):
            return False
    return True


def _meets_fixed(option: Option) -> list[Tensor]:
    found = []
    for a, b in option.ties:
        fixed = (a < 0) | (b < 0)
        if fixed.any():
            found.append(torch.cat([a[fixed], b[fixed]]))
    return found
