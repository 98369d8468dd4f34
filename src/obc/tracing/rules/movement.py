"""Operators that only move data: the ids are moved by the very same call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from obc.tracing.flow import Call, Tracked, changes, compact, freeze_all
from obc.tracing.ledger import Option, slabs
from obc.tracing.rules.pointwise import Labels, combine, meet, varying
from obc.tracing.rules.registry import rule


def move(call: Call, by: Callable[[Tensor], Any], name: str = "self") -> Any:
    """Labels after a movement: one list per output, if there are several."""
    moved = [by(ids.expand(call[name].shape)) for ids in call.labels(name)]
    if isinstance(call.out, (tuple, list)):
        return [tuple(m[i] for m in moved) for i in range(len(call.out))]
    return tuple(moved)


@rule("transpose", "permute", "unsqueeze", "squeeze", scales=True)
@rule(
    *("t", "movedim", "expand", "flip", "repeat", "diagonal", "view_as_real", "unfold"),
    *("pixel_shuffle", "pixel_unshuffle"),
)
def same_call(call: Call) -> Any:
    rest = {n: v for n, v in call.args.items() if n != "self"}
    return move(call, lambda ids: call.func(ids, **rest))


@rule("roll")
def roll(call: Call) -> Any:
    """Shifts are literal: what is rolled over the edge is not the same in a narrower tensor."""
    dims = [d % call["self"].ndim for d in call["dims"]] or list(range(call["self"].ndim))
    for ids in call.labels("self"):
        if any(ids.shape[d] > 1 for d in dims):
            others = [d for d in varying(ids) if d not in dims]
            options = [Option(ties=slabs(ids, d)) for d in others]
            call.ledger.choose(call.place, "rolled by a fixed distance", ids, options)
    return same_call(call)


@rule("tril", "triu")
def triangle(call: Call) -> Any:
    """Zeros above or below a diagonal: channels along either side of it stay."""
    for ids in call.labels("self"):
        if ids.shape[-1] > 1 or ids.shape[-2] > 1:
            call.ledger.freeze(ids, "masked along a diagonal", call.place)
    return call.labels("self")


@rule("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(call: Call) -> Any:
    """As a view to [groups, -1], turned and flattened."""
    groups, x = call["groups"], call["self"]
    for ids in call.labels("self"):
        if ids.shape[1] > 1:
            grid = ids.movedim(1, 0).reshape(groups, x.shape[1] // groups, -1)
            options = [Option(ties=slabs(grid, 1)), Option(ties=slabs(grid, 0))]
            call.ledger.choose(call.place, "shuffled in groups that must stay equal", ids, options)
    return move(call, lambda ids: torch.channel_shuffle(ids.contiguous(), groups))


@rule("constant_pad_nd", scales=True)
def pad(call: Call) -> Labels:
    """Padded positions follow; padded channels are new ones, which go with what they meet."""
    ndim, amounts = call["self"].ndim, call["pad"]
    sides = {ndim - 1 - i // 2: amounts[i : i + 2] for i in range(0, len(amounts), 2)}
    labels = []
    for ids in call.labels("self"):
        for dim, (before, after) in sides.items():
            if ids.shape[dim] > 1:
                ids = _padded(call, ids, dim, before, after)
        labels.append(ids)
    return tuple(labels)


def _padded(call: Call, ids: Tensor, dim: int, before: int, after: int) -> Tensor:
    """Channels between new ones: where there are as many before as after, they go in pairs."""
    size = ids.shape[dim]
    crop = max(-before, 0), size - max(-after, 0)
    call.ledger.cut(ids, dim, crop, call.place)
    ids = ids.narrow(dim, crop[0], crop[1] - crop[0])
    shape = [*ids.shape[:dim], -1, *ids.shape[dim + 1 :]]
    across = ids.numel() // ids.shape[dim]
    left, right = (call.ledger.fresh(max(n, 0) * across).view(shape) for n in (before, after))
    new = torch.cat([left.reshape(-1), right.reshape(-1)])
    if len(new):
        free = Option(ties=((left, right),)) if before == after else Option()
        options = [free, Option(freeze=(new,))]
        call.ledger.choose(call.place, "padded with a fixed number of channels", new, options)
    return torch.cat([left, ids, right], dim)


@rule("view", "_unsafe_view", kind="view", scales=True)
@rule("reshape", "_reshape_alias", "_reshape_copy")
def view(call: Call) -> Labels:
    shape = call.out.shape
    result: list[Tensor] = []
    for ids in call.labels("self"):
        new = ids.expand(call["self"].shape).reshape(shape)
        _split_dims(call, ids, new)
        new = compact(new)
        # Two labels can end on one dimension when it is merged from theirs.
        if not any(meet(call, old, new) is not None for old in result):
            result.append(new)
    return tuple(result)


def _split_dims(call: Call, ids: Tensor, new: Tensor) -> None:
    """A dimension of channels that is split must stay a rectangle: one of its parts shrinks."""
    for before, after in _blocks(call["self"].shape, new.shape):
        parts = [d for d in after if new.shape[d] > 1]
        if len(parts) < 2 or not any(ids.shape[d] > 1 for d in before):
            continue
        index = tuple(slice(None) if d in parts else 0 for d in range(new.ndim))
        grid = new[index]
        axes = [d for d in range(grid.ndim) if grid.shape[d] > 1 and changes(grid, d)]
        if len(axes) < 2:
            continue
        # The longest side leaves the most units; an explicit -1 shows which side follows.
        axes.sort(key=lambda d: (not _follows(call, parts[d]), -grid.shape[d]))
        options = [Option(ties=slabs(grid, d)) for d in axes]
        call.ledger.choose(call.place, "reshaped to sizes that do not follow", grid, options)


def _follows(call: Call, dim: int) -> bool:
    size: Sequence[int] = call["size"] or ()
    return dim < len(size) and size[dim] == -1


def _blocks(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Which dimensions of one shape become which of another.

    >>> _blocks((2, 12, 5), (2, 3, 4, 5))
    [([0], [0]), ([1], [1, 2]), ([2], [3])]
    """
    blocks, i, j = [], 0, 0
    while i < len(before) and j < len(after):
        left, right, a, b = [i], [j], before[i], after[j]
        while a != b:
            if a < b:
                i += 1
                left.append(i)
                a *= before[i]
            else:
                j += 1
                right.append(j)
                b *= after[j]
        blocks.append((left, right))
        i, j = i + 1, j + 1
    return blocks


@rule("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk")
def split(call: Call) -> Any:
    dim = call["dim"] % call["self"].ndim
    sizes = [t.shape[dim] for t in call.out]
    for ids in call.labels("self"):
        call.ledger.cut(ids, dim, [sum(sizes[:i]) for i in range(1, len(sizes))], call.place)
    return move(call, lambda ids: ids.split(sizes, dim))


@rule("slice")
def slice_(call: Call) -> Any:
    size, dim = call["self"].shape, call["dim"] % call["self"].ndim
    start, end, step = slice(call["start"], call["end"], call["step"]).indices(size[dim])
    for ids in call.labels("self"):
        if step > 1 and ids.shape[dim] > 1:
            _stepped(call, ids, dim, step)
        elif ids.shape[dim] > 1 and end - start == 1:
            _picked(call, ids, dim, start)
        else:
            call.ledger.cut(ids, dim, [start, end], call.place)
    return move(call, lambda ids: ids[(slice(None),) * dim + (slice(start, end, step),)])


def _stepped(call: Call, ids: Tensor, dim: int, step: int) -> None:
    """Every second channel, say: what lies between two steps goes together."""
    options = []
    if ids.shape[dim] % step == 0:
        grid = ids.movedim(dim, 0).reshape(-1, step, ids.numel() // ids.shape[dim])
        options.append(Option(ties=((grid[:, :1].expand_as(grid[:, 1:]), grid[:, 1:]),)))
    options += [Option(ties=slabs(ids, d)) for d in varying(ids) if d != dim]
    call.ledger.choose(call.place, "sliced with a step", ids, options)


@rule("as_strided")
def as_strided(call: Call) -> Any:
    """The ids are laid out in memory as the data is, and read with the same strides."""
    x, size, stride = call["self"], call["size"], call["stride"]
    offset = 0 if call["storage_offset"] is None else call["storage_offset"] - x.storage_offset()
    end = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    laid = torch.empty_strided(x.shape, x.stride(), dtype=torch.long)
    repeated = any(n > 1 and step == 0 for n, step in zip(x.shape, x.stride(), strict=True))
    if repeated or offset < 0 or end >= laid.untyped_storage().nbytes() // laid.itemsize:
        freeze_all(call, "read with strides of its own")
        return ()
    return move(call, lambda ids: laid.copy_(ids).as_strided(size, stride, offset).clone())


@rule("select", "unbind")
def select(call: Call) -> Any:
    dim = call["dim"] % call["self"].ndim
    for ids in call.labels("self"):
        if ids.shape[dim] > 1:
            index = call["index"]
            _picked(call, ids, dim, ids.shape[dim] - 1 if index is None else index)
    if call.func._schema.name == "aten::unbind":
        return move(call, lambda ids: ids.unbind(dim))
    return move(call, lambda ids: ids.select(dim, call["index"]))


def _picked(call: Call, ids: Tensor, dim: int, index: int) -> None:
    """A single channel is taken out by its position: it stays, and so does all before it."""
    last = range(ids.shape[dim])[index]
    options = [Option(ties=slabs(ids, d)) for d in varying(ids) if d != dim]
    options.append(Option(freeze=(ids.narrow(dim, 0, last + 1),)))
    call.ledger.choose(call.place, "single channels are picked out", ids, options)


@rule("cat", "concat")
def cat(call: Call) -> Labels:
    tensors = [t for t in call["tensors"] if t.ndim == call.out.ndim]
    dim = call["dim"] % call.out.ndim
    along, across = [], []
    for tensor in tensors:
        known = call.of(tensor)
        labels = known.labels if known else ()
        spread = [ids for ids in labels if ids.size(dim) > 1]
        for extra in spread[1:]:
            call.ledger.freeze(extra, "two layouts of channels are concatenated", call.place)
        if not spread:
            fixed = [tensor.shape[d] if d == dim else 1 for d in range(tensor.ndim)]
            spread = [torch.full(fixed, -1)]
        along.append(spread[0])
        rest = tuple([ids for ids in labels if ids.size(dim) == 1])
        across.append((tensor, Tracked(rest) if known else None))
    met = any(known is not None and known.labels for _, known in across)
    result = combine(call, across, call.out.ndim) if met else ()
    if all(bool((ids < 0).all()) for ids in along):
        return result
    shapes = [ids.shape for ids in along]
    shape = [max(sizes) for sizes in zip(*shapes, strict=True)]
    if any(n > 1 for d, n in enumerate(shape) if d != dim):
        along = [ids.expand(*shape[:dim], ids.shape[dim], *shape[dim + 1 :]) for ids in along]
    return (*result, torch.cat(along, dim))


@rule("stack")
def stack(call: Call) -> Labels:
    """The stacked tensors share one shape, so the channels of all of them go together."""
    dim = call["dim"] % call.out.ndim
    operands = []
    for tensor in call["tensors"]:
        known = call.of(tensor)
        lifted = Tracked(tuple(ids.unsqueeze(dim) for ids in known.labels)) if known else None
        operands.append((tensor.unsqueeze(dim), lifted))
    return combine(call, operands, call.out.ndim)


@rule("im2col")
def im2col(call: Call) -> Labels:
    height, width = call["kernel_size"]
    labels = []
    for ids in call.labels("self"):
        whole = call.ledger.whole(ids, [0, 1], call.place)
        labels.append(whole.flatten(2).repeat_interleave(height * width, 1))
    return tuple(labels)


@rule("col2im")
def col2im(call: Call) -> Labels:
    """The places of a window are added up: all copies of a channel go together."""
    places = call["kernel_size"][0] * call["kernel_size"][1]
    labels = []
    for ids in call.labels("self"):
        whole = call.ledger.whole(ids, [0, 1], call.place)
        if whole.shape[1] > 1:
            copies = whole.reshape(whole.shape[0], -1, places)
            whole = call.ledger.whole(copies, [0, 1], call.place)
        labels.append(whole.reshape(*whole.shape[:2], 1, 1))
    return tuple(labels)
