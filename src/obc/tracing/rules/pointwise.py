"""Operators that work on each position alone: channels that meet there go together."""

from __future__ import annotations

from torch import Tensor

from obc.tracing.flow import Call, Tracked
from obc.tracing.ledger import Option, slabs
from obc.tracing.rules.registry import rule

Labels = tuple[Tensor, ...]


def varying(ids: Tensor) -> list[int]:
    """The dimensions along which a label changes."""
    return [d for d, size in enumerate(ids.shape) if size > 1]


def align(ids: Tensor, ndim: int) -> Tensor:
    """A label of a tensor that is broadcast to more dimensions."""
    return ids if ids.ndim == ndim else ids.reshape((1,) * (ndim - ids.ndim) + tuple(ids.shape))


def meet(call: Call, a: Tensor, b: Tensor) -> Tensor | None:
    """Two labels on one tensor: one if they share dimensions, None if they are independent."""
    in_a, in_b = set(varying(a)), set(varying(b))
    if not in_a & in_b:
        return None
    if in_a == in_b:
        call.ledger.tie(a, b, call.place)
        return a
    if in_b > in_a:
        a, b, in_a, in_b = b, a, in_b, in_a
    if not in_a > in_b:
        for ids in (a, b):
            call.ledger.freeze(ids, "two layouts of channels cross here", call.place)
        return a
    # `b` is repeated over the other dimensions of `a`, as one scale vector over all heads is:
    # either its channels go with theirs, or theirs go as wholes along another dimension.
    options = [Option(ties=((a, b.expand_as(a)),))]
    options += [Option(ties=slabs(a, axis), freeze=(b,)) for axis in sorted(in_a - in_b)]
    call.ledger.choose(call.place, "one vector of channels is repeated over another", a, options)
    return a


def combine(call: Call, operands: list[tuple[Tensor, Tracked | None]], ndim: int) -> Labels:
    """The labels of what comes of several tensors position by position."""
    result: list[Tensor] = []
    # A weight that is multiplied by a mask is still the weight: its ids are the ones that go on.
    for _, known in sorted(operands, key=_buffers_last):
        for ids in known.labels if known else ():
            new = align(ids, ndim)
            for i, old in enumerate(result):
                merged = meet(call, old, new)
                if merged is not None:
                    result[i] = merged
                    break
            else:
                result.append(new)
    return tuple(ids for ids in result if not _meets_data(call, ids, operands))


def _buffers_last(operand: tuple[Tensor, Tracked | None]) -> bool:
    return operand[1] is not None and operand[1].origin == "buffer"


def _meets_data(call: Call, ids: Tensor, operands: list[tuple[Tensor, Tracked | None]]) -> bool:
    """Whether a label stays for good, because another operand has data along its dimensions."""
    for tensor, known in operands:
        if known is None:
            continue
        offset = ids.ndim - tensor.ndim
        labelled = {d + offset for label in known.labels for d in varying(label)}
        fixed = [
            d
            for d in varying(ids)
            if d >= offset and tensor.shape[d - offset] > 1 and d not in labelled
        ]
        if fixed:
            free = [d for d in varying(ids) if d not in fixed]
            options = [Option(ties=slabs(ids, d)) for d in free]
            call.ledger.choose(call.place, "meets data that does not shrink", ids, options)
            if not free:
                return True
    return False


@rule("relu", "leaky_relu", "clone", "contiguous", "native_dropout", scales=True)
@rule(
    *("pointwise", "_to_copy", "detach", "alias", "lift_fresh", "_prelu_kernel", "hardswish"),
    *("log_sigmoid_forward", "mish", "rrelu_with_noise", "threshold", "floor_divide"),
    *("complex", "polar", "_conj", "masked_fill"),
)
def pointwise(call: Call) -> Labels | list[Labels]:
    operands = [(t, call.of(t)) for t in call.tensors()]
    out = call.out[0] if isinstance(call.out, tuple) else call.out
    first, known = operands[0]
    labels: Labels
    if len(operands) == 1 and known is not None and len(known.labels) == 1:
        labels = known.labels  # by far the most common: nothing meets
    else:
        labels = combine(call, operands, out.ndim)
    if out is first:
        write(call, first, labels)
    return [labels] * len(call.out) if isinstance(call.out, tuple) else labels


@rule("copy")
def copy(call: Call) -> Labels | list[Labels]:
    target = call["self"]
    if target._is_view():
        return pointwise(call)
    return tuple(align(ids, target.ndim) for ids in call.labels("src"))


def write(call: Call, target: Tensor, labels: Labels) -> None:
    """An in-place write through a view changes the tensor behind it, whose labels are not ours."""
    known = call.of(target)
    before = known.labels if known else ()
    if target._is_view():
        for ids in labels[len(before) :]:
            call.ledger.freeze(ids, "written in place into a view of something else", call.place)


@rule(
    *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"),
    *("new_zeros", "new_ones", "new_empty", "new_full", "new_empty_strided", "randint_like"),
)
def constant(call: Call) -> None:
    """A new tensor of a given shape holds no channel; it follows the shapes around it."""


@rule("fill", "zero", "bernoulli", "uniform", "normal", "random", "exponential")
def overwrite(call: Call) -> Labels:
    known = call.of(call["self"])
    return known.labels if known else ()


@rule("glu")
def glu(call: Call) -> Labels:
    return tuple(_halves(call, ids, call["dim"] % call["self"].ndim) for ids in call.labels("self"))


def _halves(call: Call, ids: Tensor, dim: int) -> Tensor:
    if ids.shape[dim] == 1:
        return ids
    first, second = ids.chunk(2, dim)
    call.ledger.tie(first, second, call.place)
    return first
