"""What a model holds, to the bit, and a model pruned and ready to be saved."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import obc
from obc.surgery.record import applied
from tests.cases import Case
from tests.examples import Example
from tests.reference import random_kept
from tests.sensitive import run, tensors


def pruned(case: Case, seed: int = 0) -> nn.Module:
    """A case that has lost 30% of every site."""
    return prune(case.model(), case.example(), seed)


def prune(model: nn.Module, example: Example, seed: int = 0) -> nn.Module:
    sites = obc.trace(model, example)
    plan = obc.Plan.from_kept(sites, random_kept(sites, seed))
    return obc.apply(model, plan, example=example)


def contents(model: nn.Module) -> dict[str, Any]:
    """Every parameter and buffer under every name, with its type, shape, bytes and ties."""
    found: dict[str, Any] = {"plans": applied(model)}
    first: dict[int, str] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for store in (module._parameters, module._buffers):
            for key, tensor in store.items():
                if tensor is not None:
                    name = f"{path}.{key}"
                    kind = isinstance(tensor, nn.Parameter)
                    found[name] = (*bits(tensor), kind, first.setdefault(id(tensor), name))
    return found


def bits(tensor: Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    flat = tensor.detach().contiguous().reshape(-1)
    return tensor.dtype, tensor.shape, flat.view(torch.uint8).numpy().tobytes()


def same_outputs(first: nn.Module, second: nn.Module, example: Example) -> bool:
    """Whether both put out the very same bits in eval mode."""
    with torch.no_grad():
        pair = [[bits(t) for t in tensors(run(m.eval(), example))] for m in (first, second)]
    return pair[0] == pair[1]
