"""Matrix products and attention: a contracted channel goes together on both sides."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from obc.tracing.flow import Call, Tracked, freeze_all
from obc.tracing.rules import products
from obc.tracing.rules.pointwise import Labels, align, combine, varying
from obc.tracing.rules.registry import rule

UNREAD = "multiplied with data that does not shrink"
_ALIGNED = 8


def contract(call: Call, a: Tensor, b: Tensor) -> Labels:
    """Labels of `a @ b` for `a` of shape [batch, n, k] and `b` of shape [batch, k, m].

    Along the batch, as along attention heads, everything goes as a whole.
    """
    ledger, place = call.ledger, call.place
    known = [call.of(a) or Tracked(), call.of(b) or Tracked()]
    sides = [[align(ids, 3) for ids in k.labels] for k in known]
    _mark(call, known, sides)
    for side, axis in zip(sides, (2, 1), strict=True):
        for ids in side:
            _whole_rows(call, ids, axis)
    _tie_batch(call, sides, (a, b), heads=not any(k.weight for k in known))

    inner = [
        [ids for ids in side if varying(ids) == [axis]]
        for side, axis in zip(sides, (2, 1), strict=True)
    ]
    for left in inner[0]:
        for right in inner[1]:
            ledger.tie(left.reshape(-1), right.reshape(-1), place)
            ledger.mark("read", left)
    for mine, other in ((0, 1), (1, 0)):
        if not inner[other]:
            for ids in inner[mine]:
                ledger.freeze(ids, UNREAD, place)

    result: list[Tensor] = []
    for side, axis in zip(sides, (2, 1), strict=True):
        for ids in side:
            ids = ids.narrow(axis, 0, 1)
            if varying(ids) and not any(set(varying(ids)) <= set(varying(r)) for r in result):
                result = [r for r in result if not set(varying(r)) < set(varying(ids))]
                result.append(ids)
    return tuple(result)


def _mark(call: Call, known: list[Tracked], sides: list[list[Tensor]]) -> None:
    """A weight's contracted dimension reads; its others are what it puts out.

    Of two weights, as in low-rank adapters or learned tokens, the second reads the first.
    """
    if {k.origin for k in known} == {"buffer", "weight"}:
        call.origin = "data"  # a table of constants is an input like any other
    for i, (axis, operand) in enumerate(zip((2, 1), known, strict=True)):
        if operand.weight:
            for ids in sides[i]:
                reads = varying(ids) == [axis] and not (i == 0 and known[1].weight)
                call.ledger.mark("in" if reads else "out", ids)


def _whole_rows(call: Call, ids: Tensor, axis: int) -> None:
    """Ids that vary along the batch, or along the contracted axis and another, go as wholes."""
    axes = varying(ids)
    if 0 in axes:
        call.ledger.whole(ids, [0], call.place)
    elif axes == [1, 2]:
        call.ledger.whole(ids, [3 - axis], call.place)


def _tie_batch(
    call: Call, sides: list[list[Tensor]], tensors: tuple[Tensor, Tensor], heads: bool
) -> None:
    """The batch of a product is shared: one label along it for both sides."""
    along = [[ids for ids in side if ids.shape[0] > 1] for side in sides]
    rows = [ids[:, 0, 0] for side in along for ids in side]
    # A matrix that is broadcast over the batch follows its size; any other is data along it.
    follows = [
        bool(ids) or t.ndim < 3 or t.stride(0) == 0 for ids, t in zip(along, tensors, strict=True)
    ]
    for ids in rows:
        call.ledger.tie(rows[0], ids, call.place)
        if heads:
            call.ledger.mark("head", ids)
            call.ledger.mark("read", ids)
        if not all(follows):
            call.ledger.freeze(ids, UNREAD, call.place)


@rule("mm", kind="linear", mixes=True, macs=products.matrix_product("self", "mat2"))
@rule("bmm", mixes=True, macs=products.matrix_product("self", "mat2"))
def product(call: Call) -> Labels:
    labels = contract(call, call["self"], call["mat2"])
    return tuple(ids.reshape(ids.shape[3 - call.out.ndim :]) for ids in labels)


@rule("addmm", kind="linear", mixes=True, macs=products.matrix_product("mat1", "mat2"))
@rule("baddbmm", mixes=True, macs=products.matrix_product("batch1", "batch2"))
def add_product(call: Call) -> Labels:
    """`input + a @ b`; a bias counts as part of what puts the channels out."""
    a, b = (
        (call["mat1"], call["mat2"])
        if call["mat1"] is not None
        else (call["batch1"], call["batch2"])
    )
    ndim = call.out.ndim
    labels = tuple(ids.reshape(ids.shape[3 - ndim :]) for ids in contract(call, a, b))
    return plus_bias(call, labels, call["self"])


def plus_bias(call: Call, labels: Labels, bias: Tensor | None) -> Labels:
    known = call.of(bias)
    if bias is None or known is None:
        return labels
    for ids in known.labels if known.weight else ():
        call.ledger.mark("out", ids)
    return combine(call, [(call.out, Tracked(labels)), (bias, known)], call.out.ndim)


@rule("linear", macs=products.linear)
def linear(call: Call) -> Labels:
    x, weight = call["input"], call["weight"]
    flat = tuple(
        ids.reshape(-1, ids.shape[-1])
        for ids in call.labels("input")
        if varying(ids) == [x.ndim - 1]
    )
    for ids in call.labels("input"):
        if varying(ids) != [x.ndim - 1]:
            call.ledger.freeze(ids, UNREAD, call.place)
    known = call.of(weight) or Tracked()
    turned = Tracked(tuple(ids.t() for ids in known.labels), known.origin)
    a, b = x.reshape(-1, x.shape[-1])[:1], weight.t()
    call.flow.set(a, Tracked(flat))
    call.flow.set(b, turned)
    labels = tuple(ids.reshape(*[1] * (x.ndim - 1), -1) for ids in contract(call, a, b))
    return plus_bias(call, labels, call["bias"])


@rule("_grouped_mm", mixes=True)
def grouped_product(call: Call) -> Labels:
    """Rows of `self` [rows, k] by the matrices [experts, k, m], each a share of the rows.

    Which rows go to which expert is an index: where `offs` counts what a router picked, experts go
    with the router's channels, and stay otherwise. All have the same inner channels. The kernel
    wants rows of whole 16 bytes, so these go by eight, enough for every type.
    """
    x, weight = call["self"], call["mat2"]
    known = call.of(weight) or Tracked()
    if x.ndim != 2 or weight.ndim != 3:
        freeze_all(call, "a grouped product of another form")
        return ()
    for ids in known.labels:
        if ids.shape[0] > 1 and _follows(call, ids):
            call.ledger.mark("in", ids)
        elif ids.shape[0] > 1:
            call.ledger.freeze(ids, "experts are picked by index", call.place)
            if known.weight:
                call.ledger.mark("out", ids)
    first = weight[0]
    shared = tuple(ids[0] for ids in known.labels if ids.shape[0] == 1)
    for ids in shared:
        if ids.numel() % _ALIGNED == 0:
            call.ledger.whole(ids.reshape(-1, _ALIGNED), [0], call.place)
        else:
            call.ledger.freeze(ids, "rows must stay whole multiples of 16 bytes", call.place)
    call.flow.set(first, Tracked(shared, known.origin))
    return tuple(ids.reshape(ids.shape[1:]) for ids in contract(call, x, first))


def _follows(call: Call, ids: Tensor) -> bool:
    """Tie experts to the channels by which a router picks them, if it is known to."""
    rows = call.labels("offs")
    pick = next((p for p in call.ledger.picks if any(r is p.ids for r in rows)), None)
    if pick is None or ids.numel() != len(pick.ids):
        return False
    call.ledger.tie(ids.reshape(-1), pick.ids, call.place)
    pick.followed = True
    return True


@rule("mv", "addmv", "dot", "vdot")
def vector(call: Call) -> Any:
    freeze_all(call, "products with single vectors are not pruned")
    return ()


@rule(
    *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"),
    *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_attention_math"),
    *("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_fused_attention_overrideable"),
    *("scaled_dot_product_attention", "_scaled_dot_product_attention_math_for_mps"),
    macs=products.attention,
)
def attention(call: Call) -> Any:
    """Whole heads, and with grouped queries every query head of a key's, go together."""
    place, ledger = call.place, call.ledger
    query, key, value = call["query"], call["key"], call["value"]
    heads = query.shape[-3]
    rows = []
    for tensor in (query, key, value):
        known = call.of(tensor)
        for ids in known.labels if known else ():
            if ids.shape[-3] > 1:
                ledger.whole(ids, [ids.ndim - 3], place)
                row = ids.movedim(-3, 0).reshape(ids.shape[-3], -1)[:, 0]
                rows.append(row.repeat_interleave(heads // row.numel()))
            elif tensor is not value:
                ledger.mark("read", ledger.whole(ids, [], place))
        if heads > 1 and known and not any(ids.shape[-3] > 1 for ids in known.labels):
            ledger.freeze(_all_ids(call), UNREAD, place)
    mask = call["attn_mask"] if call["attn_mask"] is not None else call["attn_bias"]
    known = call.of(mask)
    for ids in known.labels if known else ():
        if ids.ndim >= 3 and ids.shape[-3] > 1:
            rows.append(ids.movedim(-3, 0).reshape(ids.shape[-3], -1)[:, 0])
    for row in rows:
        ledger.tie(rows[0], row, place)
        ledger.mark("head", row)
        ledger.mark("read", row)
    result = []
    for ids in call.labels("value"):
        repeat = heads // value.shape[-3] if ids.shape[-3] > 1 else 1
        result.append(ids.repeat_interleave(repeat, -3))
    return [tuple(result)] if isinstance(call.out, (tuple, list)) else tuple(result)


@rule("mkldnn_rnn_layer", macs=products.recurrence)
def recurrence(call: Call) -> Any:
    freeze_all(call, "recurrent layers are not pruned")
    return ()


def _all_ids(call: Call) -> Tensor:
    return torch.cat([ids.reshape(-1) for n in ("query", "key", "value") for ids in call.labels(n)])
