"""Operators that mix along some dimensions: sums, means, soft-maxima, pooling."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from obc.tracing.flow import Call, Tracked, freeze_all
from obc.tracing.rules.pointwise import Labels, combine, pointwise, varying
from obc.tracing.rules.registry import rule


def mix(call: Call, x: Tensor, dims: Sequence[int], tokens: bool = False) -> list[Tensor]:
    """Labels before a mixture over dims: what also varies elsewhere goes as a whole there.

    With `tokens`, weights that are mixed are data of the model's own, and no filters.
    """
    known = call.of(x) or Tracked()
    result = []
    for ids in known.labels:
        if known.weight and not tokens and any(d in dims for d in varying(ids)):
            # A mean over a narrower weight is another number, and what it scales would change.
            call.ledger.freeze(ids, "weights are scaled by a statistic over them", call.place)
        elif any(d in dims for d in varying(ids)):
            call.ledger.statistics.append((ids, call.place))
        kept = [d for d in varying(ids) if d not in dims]
        result.append(call.ledger.whole(ids, kept, call.place) if kept else ids)
    return result


@rule(
    *("mean", "sum", "amax", "amin", "max", "min", "var", "std", "var_mean", "prod", "logsumexp"),
    *("linalg_vector_norm", "norm", "std_mean", "nansum", "any", "all", "aminmax"),
    mixes=True,
)
def reduce(call: Call) -> Any:
    if isinstance(call["other"], Tensor):  # max(x, y) of two tensors is no reduction
        return pointwise(call)
    x = call["self"]
    dims = call["dim"]
    dims = [dims] if isinstance(dims, int) else dims
    dims = [d % x.ndim for d in dims] if dims else list(range(x.ndim))
    labels = []
    for ids in mix(call, x, dims):
        if all(d in dims for d in varying(ids)):
            continue
        kept = [d for d in range(x.ndim) if d not in dims]
        labels.append(ids if call["keepdim"] else ids.reshape([ids.shape[d] for d in kept]))
    return [tuple(labels)] * len(call.out) if isinstance(call.out, tuple) else tuple(labels)


@rule("_softmax", "_log_softmax", "_safe_softmax", "softmax", "log_softmax", mixes=True)
def softmax(call: Call) -> Any:
    mix(call, call["self"], [call["dim"] % call["self"].ndim])
    return call.labels("self")


@rule("_weight_norm_interface")
def weight_norm(call: Call) -> list[Labels]:
    v, g = call["v"], call["g"]
    mix(call, v, [d for d in range(v.ndim) if d != call["dim"]])
    return [combine(call, [(v, call.of(v)), (g, call.of(g))], v.ndim)]


@rule("topk", mixes=True)
def largest(call: Call) -> list[Labels]:
    """Which channels are largest is a matter of values; their numbers may pick experts."""
    x = call["self"]
    dim, labels = call["dim"] % x.ndim, []
    for ids in call.labels("self"):
        if varying(ids) == [dim]:
            call.pick = call.ledger.pick(ids, call["k"] or 1, call.place)
        elif dim in varying(ids):
            call.ledger.freeze(ids, "the order of channels matters", call.place)
        else:
            labels.append(ids)
    return [tuple(labels)] * 2


@rule("argmax", mixes=True)
def most(call: Call) -> Labels:
    """The number of the largest channel: one is picked."""
    x = call["self"]
    if call["dim"] is None:
        freeze_all(call, "the order of channels matters")
        return ()
    picked = largest(call)[0]
    dim = call["dim"] % x.ndim
    return picked if call["keepdim"] else tuple(ids.squeeze(dim) for ids in picked)


@rule("histc")
def histogram(call: Call) -> Labels:
    """How often each channel was picked."""
    known = call.of(call["self"])
    pick = known.pick if known is not None else None
    return (pick.ids,) if pick is not None and len(pick.ids) == call["bins"] else ()


@rule("cumsum", "cumprod", "sort", "argsort")
def ordered(call: Call) -> Any:
    """The order along a dimension matters, so channels along it stay."""
    x = call["self"]
    dim = (call["dim"] if call["dim"] is not None else -1) % x.ndim
    labels = []
    for ids in call.labels("self"):
        if any(ids is pick.ids for pick in call.ledger.picks):
            labels.append(ids)  # where the rows of each expert begin: none are those of one gone
        elif ids.shape[dim] > 1:
            call.ledger.freeze(ids, "the order of channels matters", call.place)
        else:
            labels.append(ids)
    return [tuple(labels)] * len(call.out) if isinstance(call.out, tuple) else tuple(labels)


@rule(
    *("max_pool1d", "max_pool2d", "max_pool2d_with_indices", "max_pool3d_with_indices"),
    *("avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"),
    scales=True,
)
@rule(
    *("max_pool3d", "mkldnn_max_pool2d", "mkldnn_max_pool3d", "adaptive_avg_pool1d"),
    *("adaptive_avg_pool2d", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d"),
    *("upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_nearest_exact2d"),
    *("reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d"),
    *("replication_pad2d", "replication_pad3d", "grid_sampler_2d", "grid_sampler_3d"),
)
def spatial(call: Call) -> Any:
    """Pooling, resizing and padding mix positions and leave each channel to itself."""
    x = call["self"] if call["self"] is not None else call["input"]
    known = call.of(x)
    rank = int(re.findall(r"(\d)d", call.func._schema.name)[0])
    labels = []
    for ids in known.labels if known else ():
        flat = only_before(call, ids, x.ndim - rank)
        if flat is not None:
            labels.append(flat)
    return [tuple(labels)] * len(call.out) if isinstance(call.out, tuple) else tuple(labels)


def only_before(call: Call, ids: Tensor, end: int) -> Tensor | None:
    """A label that varies only before a dimension: the rest of it goes as a whole, or is frozen."""
    kept = [d for d in varying(ids) if d < end]
    if not kept:
        call.ledger.freeze(ids, "channels are mixed like positions", call.place)
        return None
    return call.ledger.whole(ids, kept, call.place)
