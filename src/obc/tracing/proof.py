"""The proof: a narrower model computes what the original does with the removed channels masked.

Outputs are compared. Where they show less than the model computed (class indices, an empty list
of boxes, numbers that are not finite, what a layer of zeros makes of all that came before), so is
what every operator and every module puts out, and then each site that lost channels must have a
reader among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from obc.running.caches import cold
from obc.running.difference import NothingToCompare, difference, distance, error, numbers
from obc.running.forward import forward, outputs
from obc.running.snapshot import Snapshot
from obc.tracing.arguments import tensors_in
from obc.tracing.experts import among, moved, moves, paths
from obc.tracing.flow import Call, Flow
from obc.tracing.masked import Blanked, Masked, mixes

_Key = tuple[str, str]  # a module's path and an operator's name
_Values = dict[_Key, list[tuple[Tensor, Tensor]]]  # kept numbers, and the ids that went into them


class Proof:
    """What the masked original computes, to compare a narrower model with."""

    def __init__(
        self,
        model: nn.Module,
        flow: Flow,
        example: Any,
        gone: Tensor,
        sites: Mapping[str, Tensor],
        before: Snapshot | None = None,
    ) -> None:
        """`gone` flags the removed ids of `flow`; `sites` has ids of those that lost channels.

        `before` is a snapshot of the model without caches, by one who keeps it so; it is for
        trials, which need not look behind weights that are zero.
        """
        self._example, self._sites, self._cold = example, sites, before is not None
        self._find, self._size = flow.find, flow.ledger.size
        with before or cold(model, example):
            if mixes(flow, gone):
                result = Masked(model, flow, gone).through(model, example)
            else:
                result = forward(model, example, run=Blanked(model, flow, gone).run)
        self._outputs = outputs(result, counts=True)
        self._values: _Values | None = None
        hidden = before is None and _hides(model)
        if hidden or not (_show_all(self._outputs) and _shows(flow.whole, outputs(result))):
            inside = _MaskedInside(model, flow, gone)
            with before or cold(model, example):
                inside.through(model, example)
            self._values = inside.values

    def error(self, model: nn.Module) -> float:
        """The relative error of a narrower model; an `ObcError` if it is more than rounding."""
        with nullcontext() if self._cold else cold(model, self._example):
            made = outputs(forward(model, self._example), counts=True)
        if self._values is None:
            return difference(self._outputs, made)
        # Floating-point outputs of which none is finite are refused, whatever went before them.
        floats = any(not _counts(t) and t.numel() for t in self._outputs)
        worst = difference(self._outputs, made, bare=not floats)
        inside = _Inside(model, self._find)
        with cold(model, self._example):
            inside.through(model, self._example)
        return max(worst, self._compare(inside.values))

    def _compare(self, values: _Values) -> float:
        """Compare what both computed on the way, as far as both went the same one."""
        assert self._values is not None
        shown = torch.zeros(self._size, dtype=torch.bool)
        worst = 0.0
        for key, expected in self._values.items():
            others = values.get(key, [])
            if len(expected) != len(others):
                continue
            where = f" in '{key[0] or 'the model'}'{key[1] and f', {key[1]}'}"
            for (a, ids), (b, _) in zip(expected, others, strict=True):
                if a.shape != b.shape:  # a statistic beside the result, say, of which no ids tell
                    continue
                worst = max(worst, error(a, b, where))
                if numbers(a):
                    shown[ids] = True
        for name, ids in self._sites.items():
            if not shown[ids].any():
                raise NothingToCompare(
                    f"nothing shows whether '{name}' was cut right: what the model returns, and "
                    "what reads these channels, holds no finite floating-point number; give an "
                    "example, and weights, for which it does",
                    section="the-proof",
                )
        return worst


def _show_all(tensors: list[Tensor]) -> bool:
    """Whether outputs are nothing but finite floating-point numbers (or have no values at all)."""
    return any(t.is_meta for t in tensors) or (
        bool(tensors) and all(t.numel() and numbers(t) == t.numel() for t in tensors)
    )


def _shows(whole: list[Tensor], masked: list[Tensor]) -> bool:
    """Whether outputs would be others with the removed channels: else a fault may not show either.

    A last layer of zeros, or one whose results are rounded away, puts out the same whatever
    happens before it.
    """
    if any(t.is_meta for t in whole):
        return True
    floats = [t for t in whole if not _counts(t)]
    limit = max((torch.finfo(t.dtype).eps ** 0.5 for t in floats), default=0.0)
    return distance(whole, masked) > limit


def _hides(model: nn.Module) -> bool:
    """Whether some weight is all zeros, as the last of a branch often is before training.

    Outputs do not depend on what goes into it. The beginnings of the others tell them apart.
    """
    weights = (p for n, p in model.named_parameters() if not n.endswith("bias") and not p.is_meta)
    return any(not p.reshape(-1)[:64].any() and not p.any() for p in weights if p.numel())


def _counts(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex()


class _Inside(Flow):
    """A run that keeps what operators and modules put out, and the ids that end there."""

    def __init__(self, model: nn.Module, *args: Any) -> None:
        super().__init__(model, *args)
        self.values: _Values = {}
        # A layer that computes in another order once it is cut is compared as a whole.
        kinds = model.named_modules()
        self._whole = {n for n, m in kinds if isinstance(m, nn.MultiheadAttention)}

    def record(self, call: Call, labels: Any) -> None:
        super().record(call, labels)
        if call.place.module not in self._whole and call.origin == "data":
            outs = call.out if isinstance(call.out, (tuple, list)) else (call.out,)
            self._keep((call.place.module, call.place.op), tensors_in(outs), self.steps[-1].ids)

    def _left(self, path: str, begin: int, inputs: Any, output: Any) -> None:
        super()._left(path, begin, inputs, output)
        if path in self._whole:
            weights = [w for w in self.leaves.values() if w.name.startswith(f"{path}.")]
            ids = tuple(ids for leaf in weights for ids in leaf.dims if ids is not None)
            self._keep((path, ""), outputs(output), ids)

    def _keep(self, key: _Key, tensors: list[Tensor], read: tuple[Tensor, ...]) -> None:
        ids = torch.cat([i.reshape(-1) for i in read]) if read else torch.zeros(0).long()
        for tensor in tensors:
            known = self.of(tensor)
            labels = known.labels if known else ()
            if tensor.is_floating_point():
                ends = ids[(ids >= 0) & ~_among(ids, labels)]
                self.values.setdefault(key, []).append((self._part(tensor, labels).clone(), ends))

    def _part(self, tensor: Tensor, labels: Sequence[Tensor]) -> Tensor:
        return tensor


class _MaskedInside(_Inside, Masked):
    """The same of the masked original: what a narrower model has of it, under its names."""

    def __init__(self, model: nn.Module, flow: Flow, gone: Tensor) -> None:
        super().__init__(model, flow, gone)
        self._moves: dict[str, str | None] = {}
        for listed in flow.ledger.lists:
            old = paths(listed.layer, listed.keys)
            self._moves |= moves(old, among(listed.ids, ~gone))

    def _keep(self, key: _Key, tensors: list[Tensor], read: tuple[Tensor, ...]) -> None:
        path = moved(key[0], self._moves)
        if path is not None:
            super()._keep((path, key[1]), tensors, read)

    def _part(self, tensor: Tensor, labels: Sequence[Tensor]) -> Tensor:
        for dim, index in self._kept(labels).items():
            tensor = tensor.index_select(dim, index.to(tensor.device))
        return tensor


def _among(ids: Tensor, labels: Sequence[Tensor]) -> Tensor:
    there = [label.reshape(-1) for label in labels]
    return torch.isin(ids, torch.cat(there)) if there else torch.zeros_like(ids, dtype=torch.bool)
