"""Operators that pick or write by index: positions may be picked, channels may not."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from obc.tracing.flow import Call, Tracked, freeze_all
from obc.tracing.rules.pointwise import Labels, combine, varying, write
from obc.tracing.rules.registry import rule


@rule("index", "index_select", "_unsafe_index")
def index(call: Call) -> Labels:
    """Picking by index: positions may be picked, channels may not, for the indices are literal."""
    x = call["self"]
    if call["indices"] is not None:
        picks = list(call["indices"])
    else:
        picks = [None] * call["dim"] + [call["index"]]
    for pick in picks:
        _freeze_index(call, pick)
    spans = _pick_spans(picks, x.ndim)
    picked = [d for d, hit in enumerate(spans) if hit]
    result = []
    for ids in call.labels("self"):
        if any(ids.shape[d] > 1 for d in picked):
            call.ledger.freeze(ids, "channels are picked by index", call.place)
        else:
            result.append(_pick(ids, picked, call.out.ndim, x.ndim))
    return tuple(result)


def _pick_spans(picks: Sequence[Tensor | None], ndim: int) -> list[bool]:
    spans: list[bool] = []
    for pick in picks:
        wide = pick is not None and pick.dtype in (torch.bool, torch.uint8)
        spans += [pick is not None] * (pick.ndim if wide and pick is not None else 1)
    return spans + [False] * (ndim - len(spans))


def _pick(ids: Tensor, picked: list[int], out_ndim: int, ndim: int) -> Tensor:
    """Drop the picked dimensions and put the picks' own in their place, as indexing does."""
    adjacent = picked == list(range(picked[0], picked[-1] + 1))
    kept = [d for d in range(ndim) if d not in picked]
    at = sum(d < picked[0] for d in kept) if adjacent else 0
    shape = [ids.shape[d] for d in kept]
    extra = out_ndim - len(kept)
    return ids.reshape(*shape[:at], *([1] * extra), *shape[at:])


@rule("embedding")
def embedding(call: Call) -> Labels:
    for ids in call.labels("indices"):
        call.ledger.freeze(ids, "used as an index", call.place)
    result = []
    for ids in call.labels("weight"):
        if ids.shape[0] > 1:
            call.ledger.freeze(ids, "rows of a table are picked by index", call.place)
        else:
            call.ledger.mark("out", ids)
            result.append(ids.reshape(*[1] * call["indices"].ndim, -1))
    return tuple(result)


@rule("gather")
def gather(call: Call) -> Labels:
    """Along one dimension positions are picked; along the others everything stays in its place."""
    _freeze_index(call, call["index"])
    return _unpicked(call, call["self"], call["dim"])


@rule("index_add", "index_copy", "scatter", "scatter_add", "scatter_reduce")
def write_at(call: Call) -> Labels:
    """Rows are written to, or added at, the picked positions: their channels meet."""
    _freeze_index(call, call["index"])
    source = call["src"] if call["source"] is None else call["source"]
    return _written(
        call,
        _unpicked(call, call["self"], call["dim"]),
        _unpicked(call, source, call["dim"]) if isinstance(source, Tensor) else (),
    )


@rule("index_put", "_unsafe_index_put", "_index_put_impl")
def index_put(call: Call) -> Labels:
    """What is written replaces the leading dimensions that are picked; the others meet."""
    x, values = call["self"], call["values"]
    for pick in call["indices"]:
        _freeze_index(call, pick)
    picked = [d for d, hit in enumerate(_pick_spans(call["indices"], x.ndim)) if hit]
    rest = x.ndim - len(picked)
    if picked != list(range(len(picked))):
        freeze_all(call, "written by index between other dimensions")
        return ()
    known = call.of(values) or Tracked()
    lifted = []
    for ids in known.labels:
        if any(d < ids.ndim - rest for d in varying(ids)):
            call.ledger.freeze(ids, "channels are picked by index", call.place)
        else:
            kept = ids.shape[max(ids.ndim - rest, 0) :]
            lifted.append(ids.reshape(*[1] * (x.ndim - len(kept)), *kept))
    return _written(call, _unpicked(call, x, *picked), tuple(lifted))


@rule("masked_scatter")
def masked_scatter(call: Call) -> Labels:
    """Rows of the source fill the masked rows in turn, if the mask takes whole rows."""
    x, mask, source = call["self"], call["mask"], call["source"]
    rows = mask.expand(x.shape)
    whole = rows.shape[-1] == source.shape[-1] and not rows.is_meta
    if not whole or not torch.equal(rows, rows[..., :1].expand_as(rows)):
        freeze_all(call, "filled from another tensor number by number")
        return ()
    before = range(x.ndim - 1), range(source.ndim - 1)
    target = _unpicked(call, x, *before[0])
    return _written(
        call,
        target,
        tuple(i.reshape(*[1] * (x.ndim - 1), -1) for i in _unpicked(call, source, *before[1])),
    )


def _freeze_index(call: Call, index: Tensor | None) -> None:
    known = call.of(index)
    for ids in known.labels if known else ():
        call.ledger.freeze(ids, "used as an index", call.place)


def _unpicked(call: Call, x: Tensor, *dims: int) -> Labels:
    """The labels of a tensor that do not change along picked dimensions; the others stay."""
    known = call.of(x)
    picked = {d % x.ndim for d in dims}
    labels = []
    for ids in known.labels if known else ():
        if picked & set(varying(ids)):
            call.ledger.freeze(ids, "channels are picked by index", call.place)
        else:
            labels.append(ids)
    return tuple(labels)


def _written(call: Call, target: Labels, source: Labels) -> Labels:
    """Labels of a tensor that another was written into."""
    x = call["self"]
    known = call.of(x)
    operands = [(x, Tracked(target) if known else None), (x, Tracked(source))]
    labels = combine(call, operands if source else operands[:1], x.ndim)
    if call.out is x:
        write(call, x, labels)
    return labels
