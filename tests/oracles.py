"""Two judges of a pruned model, and a way to make one wrong that each of them must notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import obc
from obc.surgery.verify import proof
from obc.tracing.experts import moved
from obc.tracing.tracer import Tracing
from tests import reference
from tests.sensitive import run, tensors

Oracle = Callable[[nn.Module], float]
"""The relative error of a pruned model."""


def verifying(model: nn.Module, plan: obc.Plan, example: Any) -> Oracle:
    """`obc.verify` with its reference worked out once; a refusal counts as an infinite error."""
    expected = proof(Tracing(model, example), plan.kept)

    def error(pruned: nn.Module) -> float:
        try:
            return expected.error(pruned)
        except obc.ObcError as refusal:
            assert "differs from the masked original" in str(refusal)
            return float("inf")

    return error


def obvious(
    model: nn.Module, sites: obc.Sites, plan: obc.Plan, example: Any, producers: bool = True
) -> Oracle:
    """The masked copy of tests/reference.py."""
    expected = reference.masked_outputs(model, sites, plan.kept, example, producers)

    def error(pruned: nn.Module) -> float:
        with torch.no_grad():
            return reference.relative_error(expected, tensors(run(pruned, example)))

    return error


def rolls(
    model: nn.Module, pruned: nn.Module, sites: obc.Sites, plan: obc.Plan, one_each: bool = False
) -> Iterator[obc.Member]:
    """The pruned model with one weight after another rolled by a channel; at the end it is right.

    Biases are left out, for they may cancel: a key's in a softmax, any before a norm. With
    `one_each`, a single reader of every site is rolled. Experts that went or moved are left out.
    """
    weights = dict(pruned.named_parameters())
    for site in sites:
        members = [m for member in site.members for m in member.each()]
        members = [m for m in members if not m.param.endswith("bias")]
        members = [m for m in members if moved(m.name, plan.moves) == m.name]
        if one_each:
            members = sorted(members, key=lambda m: m.role != "in")[:1]
        for member in members:
            right = weights[member.name].detach().clone()
            reference.roll(model, pruned, sites, plan.kept, member)
            yield member
            weights[member.name].data.copy_(right)
