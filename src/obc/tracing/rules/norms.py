"""Normalisation layers: per-channel scales go with their channels; statistics adapt."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from obc.tracing.flow import Call, Tracked
from obc.tracing.ledger import Option, slabs
from obc.tracing.rules.pointwise import Labels, combine, varying
from obc.tracing.rules.reduction import mix
from obc.tracing.rules.registry import rule

_PARTS = ("weight", "bias", "running_mean", "running_var")


def scaled(call: Call, x: Tensor, labels: Labels, dim: int | None) -> Labels:
    """The input's labels, met by the layer's vectors along a dimension (None: the last ones)."""
    parts = [(call[name], call.of(call[name])) for name in _PARTS if call[name] is not None]
    if len(labels) == 1 and varying(labels[0]) == [dim] and all(map(_is_vector, parts)):
        channels = labels[0].reshape(-1)  # by far the most common: one vector of channels
        for _, known in parts:
            call.ledger.tie(channels, known.labels[0], call.place)  # type: ignore[union-attr]
        return labels
    operands: list[tuple[Tensor, Tracked | None]] = [(x, Tracked(labels))]
    for part, known in parts:
        if known is None:
            continue
        if dim is not None:
            shape = [1] * x.ndim
            shape[dim] = -1
            known = Tracked(tuple(ids.view(shape) for ids in known.labels), known.origin)
            part = part.view(shape)
        operands.append((part, known))
    return combine(call, operands, x.ndim)


def _is_vector(part: tuple[Tensor, Tracked | None]) -> bool:
    return part[1] is not None and len(part[1].labels) == 1 and part[0].ndim == 1


@rule("native_batch_norm", "_native_batch_norm_legit_no_training", kind="norm")
@rule(
    *("_native_batch_norm_legit", "batch_norm_with_update", "_batch_norm_no_update"),
    *("cudnn_batch_norm", "miopen_batch_norm", "_batch_norm_with_update"),
    *("batch_norm", "_batch_norm_impl_index"),
)
def batch_norm(call: Call) -> list[Labels]:
    x = call["input"]
    known = call.of(x)
    if known is not None and known.weight:  # standardised weights: statistics over their inputs
        mix(call, x, [d for d in range(x.ndim) if d != 1])
    return [scaled(call, x, call.labels("input"), 1)]


@rule("native_layer_norm", kind="norm", mixes=True)
@rule("layer_norm", "_fused_rms_norm", "rms_norm", mixes=True)
def layer_norm(call: Call) -> Any:
    x = call["input"]
    dims = range(x.ndim - len(call["normalized_shape"]), x.ndim)
    call.origin = "data"  # learned tokens are normed like any others
    mix(call, x, dims, tokens=True)
    labels = scaled(call, x, call.labels("input"), None)
    return [labels] if isinstance(call.out, (tuple, list)) else labels


@rule("native_group_norm", mixes=True)
def group_norm(call: Call) -> list[Labels]:
    """Groups stay equal: whole groups go, or the same place in each: what leaves more units."""
    x, groups = call["input"], call["group"]
    mix(call, x, range(2, x.ndim))
    for ids in call.labels("input"):
        if 1 in varying(ids) and groups < ids.shape[1]:
            call.ledger.statistics.append((ids, call.place))
        if 1 in varying(ids) and groups > 1:
            grid = call.ledger.whole(ids, [1], call.place).view(groups, -1)
            options = [Option(ties=slabs(grid, 0)), Option(ties=slabs(grid, 1))]
            if grid.shape[1] > groups:
                options.reverse()
            call.ledger.choose(call.place, "groups of a norm must stay equal", grid, options)
    return [scaled(call, x, call.labels("input"), 1)]
