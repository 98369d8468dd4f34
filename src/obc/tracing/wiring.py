"""How layers follow each other: what lets a criterion take one layer's term from another's."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from obc.tracing.experts import paths, within
from obc.tracing.flow import Flow, Step


@dataclass(frozen=True)
class Wiring:
    """Facts about a model's layers, by name.

    `users` are the modules that use a parameter; `before` is the layer whose output a norm layer
    alone reads; `source` is the layer whose output a layer alone reads, behind nothing but
    rectifiers, pooling, reshaping, and factors from elsewhere.
    """

    users: dict[str, frozenset[str]] = field(default_factory=dict)
    before: dict[str, str] = field(default_factory=dict)
    source: dict[str, str] = field(default_factory=dict)


def wire(flow: Flow) -> Wiring:
    """Read the facts off the steps of a run."""
    readers = Counter(i for step in flow.steps for i in step.reads if i >= 0)
    calls = Counter(s.place.module for s in flow.steps if _is_layer(s))
    before, source = {}, {}
    for step in flow.steps:
        layer = step.place.module
        if not _is_layer(step) or calls[layer] != 1 or len(step.reads) != 1:
            continue
        maker = _maker(flow, step, readers, through=step.operator.kind == "linear")
        if maker is None or calls[maker.place.module] != 1:
            continue
        if step.operator.kind == "linear":
            source[layer] = maker.place.module
        elif maker.operator.kind == "linear":
            before[layer] = maker.place.module
    users = {leaf.name: frozenset(leaf.users) for leaf in flow.leaves.values()}
    # Experts of a list are looked at together, and what they are called changes as some go.
    experts = {path for x in flow.ledger.lists for path in paths(x.layer, x.keys)}
    before, source = (
        {a: b for a, b in facts.items() if not within(f"{a}.", experts)}
        for facts in (before, source)
    )
    return Wiring(users, before, source)


def _is_layer(step: Step) -> bool:
    return step.operator.kind in ("linear", "norm")


def _maker(flow: Flow, step: Step, readers: Counter[int], through: bool) -> Step | None:
    """The layer whose output this step reads, if nothing else does."""
    return _behind(flow, step.reads[0], step, readers, through)


def _behind(
    flow: Flow, number: int, step: Step, readers: Counter[int], through: bool
) -> Step | None:
    """The layer that leads to a step by its number, and to nothing else."""
    while number >= 0 and readers[number] == 1:
        made = flow.steps[number]
        if _is_layer(made):
            return made
        if through and made.place.op == "mul" and len(made.reads) == 2:
            # Linear in each factor: a gate leaves what the other layer sends on as it is.
            factors = [_behind(flow, n, step, readers, through) for n in made.reads]
            return next((layer for layer in factors if layer is not None), None)
        if not made.operator.scales or len(made.reads) != 1 or not (through or _inside(made, step)):
            return None
        number = made.reads[0]
    return None


def _inside(made: Step, step: Step) -> bool:
    """Reshaping that a layer does on its own output, as linear layers do."""
    return made.operator.kind == "view" and made.place.module != step.place.module
