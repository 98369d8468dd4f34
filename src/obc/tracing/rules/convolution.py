"""Convolutions of any number of dimensions, plain, grouped, depthwise and transposed."""

from __future__ import annotations

import torch
from torch import Tensor

from obc.tracing.flow import Call, Tracked
from obc.tracing.ledger import Option, slabs
from obc.tracing.rules import products
from obc.tracing.rules.contraction import UNREAD, plus_bias
from obc.tracing.rules.pointwise import Labels, varying
from obc.tracing.rules.reduction import only_before
from obc.tracing.rules.registry import rule


@rule("convolution", kind="linear", macs=products.convolution)
@rule("_convolution", macs=products.convolution)
def convolution(call: Call) -> Labels:
    weight, groups = call["weight"], call["groups"]
    known = call.of(weight) or Tracked()
    turned = int(call["transposed"])
    leaf = call.flow.leaves.get(id(weight))
    by_axis = (
        dict(enumerate(leaf.dims))
        if leaf is not None
        else {varying(ids)[0]: ids.reshape(-1) for ids in known.labels if len(varying(ids)) == 1}
    )
    reads, writes = by_axis.get(1 - turned), by_axis.get(turned)
    for role, ids in (("in", reads), ("out", writes)):
        if ids is not None and known.weight:
            call.ledger.mark(role, ids)
    x, rest = _input(call)
    if groups > 1:
        out = _grouped(call, x, reads, writes, groups, bool(turned))
    else:
        _read(call, x, reads)
        out = writes
    shape = (1, -1) + (1,) * (call.out.ndim - 2)
    labels = rest if out is None else (*rest, out.view(shape))
    bias = call["bias"]
    if bias is None:
        return labels
    wide = bias.view(shape)
    lifted = call.of(bias) or Tracked()
    call.flow.set(wide, Tracked(tuple(ids.view(shape) for ids in lifted.labels), lifted.origin))
    return plus_bias(call, labels, wide)


def _input(call: Call) -> tuple[Tensor | None, Labels]:
    """The ids of the input's channels, and the labels that only pass along the batch."""
    channels, rest = None, []
    for ids in call.labels("input"):
        flat = only_before(call, ids, 2)
        if flat is None:
            continue
        if varying(flat) == [0]:
            rest.append(flat)
        elif varying(flat) == [1] and channels is None:
            channels = flat.reshape(-1)
        else:
            call.ledger.freeze(flat, UNREAD, call.place)
    return channels, tuple(rest)


def _read(call: Call, x: Tensor | None, reads: Tensor | None) -> None:
    if x is not None and reads is not None:
        call.ledger.tie(x, reads, call.place)
    else:
        for ids in (x, reads):
            if ids is not None:
                call.ledger.freeze(ids, UNREAD, call.place)


def _grouped(
    call: Call,
    x: Tensor | None,
    reads: Tensor | None,
    writes: Tensor | None,
    groups: int,
    turned: bool,
) -> Tensor | None:
    """Either whole groups go, or the same place in every group: whichever leaves more units.

    The weight spells out one side over all groups (rows) and shares the other between them
    (columns); a transposed convolution has them the other way round.
    """
    ledger, place = call.ledger, call.place
    rows, columns = (reads, writes) if turned else (writes, reads)
    if turned:
        _read(call, x, rows)
    if rows is None or (x is None and not turned):
        for ids in (x, rows, columns):
            if ids is not None:
                ledger.freeze(ids, UNREAD, place)
        return None if turned else rows
    near = rows.view(groups, -1)
    far = (ledger.fresh(call.out.shape[1]) if x is None or turned else x).view(groups, -1)
    whole = (*slabs(near, 0), *slabs(far, 0), (near[:, 0], far[:, 0]))
    if columns is None:  # depthwise on the shared side: nothing but whole groups can go
        for a, b in whole:
            ledger.tie(a, b, place)
    else:
        by_group = Option(ties=whole, freeze=(columns,))
        by_place = Option(ties=(*slabs(near, 1), (far, columns.expand_as(far))))
        options = [by_group, by_place]
        if groups < max(far.shape[1], near.shape[1]):
            options.reverse()
        every = torch.cat([ids.reshape(-1) for ids in (near, far, columns)])
        ledger.choose(place, "groups of a convolution must stay equal", every, options)
    return far.reshape(-1) if turned else rows
