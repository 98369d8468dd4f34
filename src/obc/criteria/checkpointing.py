"""Activation checkpointing by block: memory that does not grow with a model's depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from obc.running.keys import without_keys
from obc.running.modules import blocks_of


@contextmanager
def checkpointed(model: nn.Module) -> Iterator[None]:
    """Inside, each block keeps its input alone and runs again when its gradient is computed.

    That costs one more forward pass. The first run of a block records nothing, so hooks on its
    layers hold activations of one block at a time; gradients have to be asked for by `backward`.
    """
    blocks = list(model.get_submodule(blocks_of(model)).children())
    try:
        for block in blocks:
            block.forward = partial(_again, block.forward)
        with without_keys(model):  # a block that runs again would add its keys again
            yield
    finally:
        for block in blocks:
            vars(block).pop("forward", None)


def _again(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a block under checkpointing, with whatever tensors it is given as inputs."""
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    leaves, spec = tree_flatten((args, kwargs))
    places = [i for i, x in enumerate(leaves) if isinstance(x, Tensor)]
    floats = [i for i in places if leaves[i].is_floating_point()]
    if floats and not any(leaves[i].requires_grad for i in floats):
        # Frozen layers lead up to the first block; the graph has to begin somewhere.
        leaves[floats[0]] = leaves[floats[0]].detach().requires_grad_()

    def run(*tensors: Tensor) -> Any:
        inner = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            inner[place] = tensor
        positional, named = tree_unflatten(inner, spec)
        return forward(*positional, **named)

    tensors = [leaves[i] for i in places]
    return checkpoint(run, *tensors, use_reentrant=True, preserve_rng_state=False)
