"""Judges a pruned model, whoever pruned it: does it compute what the masked original does?

What was removed is read off the result, by finding each value that is left among the original's
parameters, so nobody's notes of indices need to be trusted. Three references are tried, and any
of them will do: a copy with zeros at the removed positions, which needs no trace; obc's masks, by
which norms and softmaxes over channels leave the removed ones out; and both together.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

import obc
from obc.running.difference import difference
from obc.running.forward import forward, outputs
from obc.running.snapshot import unchanged
from obc.tracing.masked import Masked
from obc.tracing.solve import base_classes
from obc.tracing.tracer import Tracing

Kept = Mapping[tuple[str, int], Tensor]  # what is left of a parameter's dimension

# From best to worst: a crash is noticed, a wrong model is not.
VERDICTS = (
    "right",
    "right but for the scale",
    "nothing pruned",
    "refused",
    "not judged",
    "no end",
    "crash",
    "other shape",
    "silently wrong",
)


def judge(tracing: Tracing, pruned: nn.Module) -> tuple[str, str]:
    """A verdict on a pruned copy of a traced model, and what it rests on."""
    model, example = tracing.model, tracing.example
    before, after = outputs(forward(model, example)), outputs(forward(pruned, example))
    if [t.shape for t in before] != [t.shape for t in after]:
        return "other shape", str([tuple(t.shape) for t in after])
    if not removed(model, pruned):
        return "nothing pruned", ""
    try:
        kept = kept_positions(model, pruned)
    except ValueError as error:
        return "not judged", str(error)
    zeroed = _zeroed(model, kept)
    if _equal(outputs(forward(zeroed, example)), after):
        return "right", "equals a copy with zeros"
    gone = _gone_ids(tracing, kept)
    try:
        masked = [_masked_outputs(tracing, m, gone) for m in (model, zeroed)]
    except Exception as error:  # a pattern that no plan of ours has
        return "not judged", f"masks fail: {first_line(error)}"
    if any(_equal(reference, after) for reference in masked):
        return "right", "equals the original with masks"
    rescaled = outputs(forward(_rescaled(model, pruned), example))
    if any(_equal(reference, rescaled) for reference in masked):
        return "right but for the scale", "attention is scaled by the width of narrower heads"
    frozen = _frozen(tracing, gone)
    if frozen:  # past such a place obc's masks do not reach
        return "not judged", f"removes what obc freezes: {frozen}"
    return "silently wrong", "differs from every masked original"


def removed(before: nn.Module, after: nn.Module) -> float:
    """The share of the parameters that is gone; negative where tied weights came apart."""
    full, left = (sum(p.numel() for p in m.parameters()) for m in (before, after))
    return 1 - left / full


def first_line(error: Exception) -> str:
    """An error in one line."""
    text = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {text}"[:200]


def output_layers(tracing: Tracing, kinds: tuple[type[nn.Module], ...]) -> list[str]:
    """Layers that put out what the model puts out, which torch-pruning's user has to name."""
    ledger = tracing.flow.ledger
    base = base_classes(ledger)
    out = torch.zeros(ledger.size, dtype=torch.bool)
    for ids, reason in ledger.frozen:
        if reason.text == "model output":
            out[base[ids]] = True
    leaves = {id(leaf.tensor): leaf for leaf in tracing.flow.leaves.values()}
    found = []
    for name, layer in tracing.model.named_modules():
        leaf = leaves.get(id(getattr(layer, "weight", None)))
        if leaf is not None and isinstance(layer, kinds):
            own = leaf.dims[1 if getattr(layer, "transposed", False) else 0]
            if own is not None and out[base[own]].any():
                found.append(name)
    return found


def kept_positions(before: nn.Module, after: nn.Module) -> Kept:
    """Which positions of each parameter dimension are left, recognised by their values."""
    small = dict(after.named_parameters(remove_duplicate=False))
    left = {}
    for name, parameter in before.named_parameters(remove_duplicate=False):
        full, part = parameter.detach(), small[name].detach()
        if part.shape == full.shape:
            continue
        origin = (full == part.reshape(-1)[0]).nonzero()
        if len(origin) != 1:
            raise ValueError(f"'{name}' begins with a value that is not in the original once")
        cut = full
        for dim in range(full.ndim):  # along the lines through the value that now comes first
            line = full[tuple(slice(None) if d == dim else at for d, at in enumerate(origin[0]))]
            values, order = line.sort()
            wanted = part.movedim(dim, 0).reshape(part.shape[dim], -1)[:, 0].contiguous()
            found = torch.searchsorted(values, wanted).clamp_max(len(values) - 1)
            left[name, dim] = order[found]
            cut = cut.index_select(dim, order[found])
        if not torch.equal(cut, part):
            raise ValueError(f"'{name}' is not a slice of the original")
    return left


def _equal(reference: list[Tensor], found: list[Tensor]) -> bool:
    try:
        difference(reference, found)
    except obc.ObcError:
        return False
    return True


def _zeroed(model: nn.Module, kept: Kept) -> nn.Module:
    zeroed = copy.deepcopy(model)
    with torch.no_grad():
        for name, tensor in zeroed.named_parameters(remove_duplicate=False):
            for dim in range(tensor.ndim):
                if (name, dim) in kept:
                    tensor.index_fill_(dim, _gone(kept[name, dim], tensor.shape[dim]), 0)
    return zeroed


def _masked_outputs(tracing: Tracing, model: nn.Module, gone: Tensor) -> list[Tensor]:
    with unchanged(model):
        return outputs(Masked(model, tracing.flow, gone).through(model, tracing.example))


def _rescaled(before: nn.Module, after: nn.Module) -> nn.Module:
    """A copy whose queries undo that narrower heads are scaled by another root."""
    after = copy.deepcopy(after)
    for old, new in zip(before.modules(), after.modules(), strict=True):
        if isinstance(old, nn.MultiheadAttention) and isinstance(new, nn.MultiheadAttention):
            with torch.no_grad():
                for tensor in (new.in_proj_weight, new.in_proj_bias):
                    if tensor is not None:
                        tensor[: new.embed_dim] *= (new.head_dim / old.head_dim) ** 0.5
    return after


def _frozen(tracing: Tracing, gone: Tensor) -> str:
    """Why obc would leave some of it."""
    classes = tracing.classes
    why = set(classes.why[classes.of[gone]].tolist()) - {-1}
    return "; ".join(sorted({classes.reasons[c].text for c in why}))


def _gone_ids(tracing: Tracing, kept: Kept) -> Tensor:
    gone = torch.zeros(tracing.flow.ledger.size, dtype=torch.bool)
    for leaf in tracing.flow.leaves.values():
        for dim, ids in enumerate(leaf.dims):
            if ids is not None and (leaf.name, dim) in kept:
                gone[ids[_gone(kept[leaf.name, dim], len(ids))]] = True
    return gone


def _gone(kept: Tensor, size: int) -> Tensor:
    gone = torch.ones(size, dtype=torch.bool)
    gone[kept] = False
    return gone.nonzero().reshape(-1)
