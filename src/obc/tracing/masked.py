"""The masked original: what a model computes when nothing reads the removed channels.

Masked means: no layer reads a removed channel, and where an operator mixes channels without
weights (the mean of a LayerNorm, a softmax, a product of activations) it mixes the kept ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils._pytree import tree_leaves

from obc.running.mapping import kept_as
from obc.running.modules import named_tensors
from obc.tracing.flow import Call, Flow, labelled_dims
from obc.tracing.ledger import any_between


class Masked(Flow):
    """Runs the original so that removed channels are never read.

    `flow` is an earlier run, which issued the same ids; `gone` has a flag for each of them.
    """

    def __init__(self, model: nn.Module, flow: Flow, gone: Tensor) -> None:
        super().__init__(model, flow.find)
        self._gone = gone
        self._blanked = Blanked(model, flow, gone)
        if flow.ledger.lists:
            # Other experts may run, and in another order: ids are known by their parameters, and
            # whatever else gets any comes behind, and stays.
            self.leaves = {
                key: replace(leaf, users=set())
                for key, leaf in flow.leaves.items()
                if self._names.get(key) == leaf.name
            }
            self.ledger.size = flow.ledger.size
            self._gone = pad(gone, (0, len(gone)))

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._blanked.run(func, args, kwargs)

    def record(self, call: Call, labels: Any) -> None:
        if (
            self.find(call.func).mixes
            and not call.func._schema.is_mutable
            and call.origin == "data"
            and any(self._gone[i].any() for i in _all_labels(call))
        ):
            many = isinstance(call.out, (tuple, list))
            small = self._on_kept(call)
            whole = _list(call.out)
            out_labels = [*(labels if many else [labels]), *((),) * len(whole)]
            # Outputs past the labelled ones are statistics: those of the kept channels.
            for i, (part, ids) in enumerate(zip(_list(small), out_labels, strict=False)):
                whole[i] = self._grown(part, whole[i], ids)
            # Not written in place: what an operator puts out may be one number, seen many times.
            call.out = type(call.out)(whole) if many else whole[0]
        super().record(call, labels)

    def _on_kept(self, call: Call) -> Any:
        """The same operator on the kept channels alone."""
        args = dict(call.args)
        for name, value in args.items():
            known = call.of(value)
            if known is not None:
                value = self._blanked.blank(value)
                for dim, index in self._kept(known.labels).items():
                    value = value.index_select(dim, index.to(value.device))
                args[name] = value
        if "normalized_shape" in args:
            args["normalized_shape"] = args["input"].shape[-len(args["normalized_shape"]) :]
        if "group" in args:
            channels = self._kept(call.labels("input")).get(1)
            if channels is not None:
                per_group = args["C"] // args["group"]
                args["C"], args["group"] = len(channels), len((channels // per_group).unique())
        made = call.func(**args)
        if call.pick is None:
            return made
        # Numbers of channels among the kept ones, as they are among all.
        *values, numbers = made if isinstance(made, (tuple, list)) else (made,)
        dim = call["dim"] % call["self"].ndim
        numbers = self._kept(call.labels("self"))[dim].to(numbers.device)[numbers]
        return (*values, numbers) if values else numbers

    def _kept(self, labels: Sequence[Tensor]) -> dict[int, Tensor]:
        """Which indices of which dimension are left: removed ids always fill whole slices."""
        left: dict[int, Tensor] = {}
        for ids in labels:
            gone = self._gone[ids.clamp_min(0)] & (ids >= 0)
            if not gone.any():
                continue
            for dim in range(ids.ndim):
                flat = gone.movedim(dim, 0).reshape(ids.shape[dim], -1)
                if ids.shape[dim] > 1 and torch.equal(flat.all(1), flat.any(1)):
                    left[dim] = (~flat.any(1)).nonzero().reshape(-1)
                    break
        return left

    def _grown(self, part: Tensor, full: Tensor, labels: Sequence[Tensor]) -> Tensor:
        """Put the result back among zeros."""
        shape = list(part.shape)
        for dim, index in self._kept(labels).items():
            shape[dim] = full.shape[dim]
            wide = part.new_zeros(shape)
            part = wide.index_copy(dim, index.to(part.device), part)
        return part


def mixes(flow: Flow, gone: Tensor) -> bool:
    """Whether an operator mixes removed channels with others, and no weight stands between."""
    if any(gone[ids[ids >= 0]].any() for ids, _ in flow.ledger.statistics):
        return True
    if any(gone[pick.ids].any() for pick in flow.ledger.picks):
        return True
    # Operators of other libraries say that they mix, but not along which dimensions.
    products = (
        step.ids
        for step in flow.steps
        if step.operator.mixes and (len(step.reads) > 1 or "::" in step.place.op)
    )
    return any(bool(gone[ids[ids >= 0]].any()) for labels in products for ids in labels)


class Blanked:
    """Runs operators with nothing in a weight where it would read a removed channel.

    Where nothing `mixes` them, the model then computes what the masked one does, and nearly at
    full speed. Each blank weight is gone after its operator, so that the next takes its memory.
    """

    def __init__(self, model: nn.Module, flow: Flow, gone: Tensor) -> None:
        self._removed: dict[int, list[tuple[int, Tensor]]] = {}  # dimensions and positions
        flags, tensors = gone & flow.ledger.marked("in"), named_tensors(model)
        dims = labelled_dims(flow.leaves.values())
        hit = any_between(flags, [d[3] for d in dims], [d[2].numel() for d in dims])
        for (leaf, dim, ids, start), reads in zip(dims, hit, strict=True):
            if reads:
                tensor = tensors[leaf.name]
                at = flags[start : start + ids.numel()].nonzero().reshape(-1)
                self._removed.setdefault(id(tensor), []).append((dim, at.to(tensor.device)))

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator; one that writes gets what it writes to."""
        if not func._schema.is_mutable:
            args = tuple([self.blank(value) for value in args])
            kwargs = {name: self.blank(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)

    def blank(self, value: Any) -> Any:
        """An argument, with zeros where a weight would read a removed channel."""
        if type(value) in (list, tuple):
            return [self.blank(part) for part in value]
        removed = self._removed.get(id(value))
        if removed is None:
            return value
        part = value.detach()
        for dim, at in removed:
            part = part.index_fill(dim, at, 0)
        return kept_as(part, value)


def _all_labels(call: Call) -> list[Tensor]:
    known = [call.of(t) for t in call.tensors()]
    return [ids[ids >= 0] for k in known if k is not None for ids in k.labels]


def _list(value: Any) -> list[Tensor]:
    return [t for t in tree_leaves(value) if isinstance(t, Tensor)]
