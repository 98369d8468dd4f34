"""How layers follow each other: what lets a criterion take one layer's term from another's."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from obc.tracing.flow import Flow, Step

# f(a x) = a f(x) for a > 0, channel by channel: x . df/dx is the same before and after (Euler).
_HOMOGENEOUS = {
    *("relu", "relu_", "leaky_relu", "leaky_relu_", "clone", "contiguous", "native_dropout"),
    *("max_pool1d", "max_pool2d", "max_pool2d_with_indices", "max_pool3d_with_indices"),
    *("avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"),
    *("view", "_unsafe_view", "permute", "transpose", "squeeze", "unsqueeze", "constant_pad_nd"),
}
_NORMS = {"native_batch_norm", "_native_batch_norm_legit_no_training", "native_layer_norm"}
_LINEAR = {"convolution", "addmm", "mm"}


@dataclass(frozen=True)
class Wiring:
    """Facts about a model's layers, by name.

    `users` are the modules that use a parameter; `before` is the layer whose output a norm layer
    alone reads; `source` is the layer whose output a layer alone reads, behind nothing but
    rectifiers, pooling and reshaping.
    """

    users: dict[str, frozenset[str]] = field(default_factory=dict)
    before: dict[str, str] = field(default_factory=dict)
    source: dict[str, str] = field(default_factory=dict)


def wire(flow: Flow) -> Wiring:
    """Read the facts off the steps of a run."""
    readers = Counter(i for step in flow.steps for i in step.reads if i >= 0)
    calls = Counter(s.place.module for s in flow.steps if s.name in _NORMS | _LINEAR)
    before, source = {}, {}
    for step in flow.steps:
        layer = step.place.module
        if calls[layer] != 1 or len(step.reads) != 1:
            continue
        if step.name in _NORMS:
            maker = _maker(flow, step, readers, through=False)
            if maker is not None and maker.name in _LINEAR and calls[maker.place.module] == 1:
                before[layer] = maker.place.module
        elif step.name in _LINEAR:
            maker = _maker(flow, step, readers, through=True)
            if maker is not None and calls[maker.place.module] == 1:
                source[layer] = maker.place.module
    users = {name: frozenset(paths) for name, paths in flow.uses.items()}
    return Wiring(users, before, source)


def _maker(flow: Flow, step: Step, readers: Counter[int], through: bool) -> Step | None:
    """The layer whose output this step reads, if nothing else does."""
    number = step.reads[0]
    while number >= 0 and readers[number] == 1:
        made = flow.steps[number]
        if made.name in _NORMS | _LINEAR:
            return made
        if (
            made.name not in _HOMOGENEOUS
            or len(made.reads) != 1
            or not (through or _inside(made, step))
        ):
            return None
        number = made.reads[0]
    return None


def _inside(made: Step, step: Step) -> bool:
    """Reshaping that a layer does on its own output, as linear layers do."""
    return made.name in ("view", "_unsafe_view") and made.place.module != step.place.module
