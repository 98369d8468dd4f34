"""Products C W Dᵀ once per optimizer step, however many batches it is gathered from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from obc.equivalent.factors import BiasFactors, Factors


@contextmanager
def hold(model: nn.Module) -> Iterator[None]:
    """Work out every Ŵ once, for all forward and backward passes inside.

    Gradients gather at Ŵ, and reach W, C and D when the block ends: read, clip and step after it.
    Parameters must not change inside. For one process: DistributedDataParallel waits for gradients
    that only come at the end.

    >>> import obc
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> plan = obc.Plan.from_kept(obc.trace(net, torch.zeros(1, 4)), {"0": [0, 2, 5]})
    >>> net = obc.apply(net, plan, equivalent=True)
    >>> with hold(net):
    ...     for part in torch.randn(4, 2, 4):
    ...         net(part).sum().backward()
    >>> net[0].parametrizations.weight.original.grad.shape
    torch.Size([8, 4])
    """
    held: list[tuple[Factors | BiasFactors, Tensor]] = []
    try:
        for module in model.modules():
            if isinstance(module, parametrize.ParametrizationList):
                factors = module[0]
                if isinstance(factors, (Factors, BiasFactors)):
                    small: Tensor = module()
                    factors.held = small.detach().requires_grad_(small.requires_grad)
                    held.append((factors, small))
        yield
    finally:
        held_values = [(f.held, small) for f, small in held]
        for factors, _ in held:
            factors.held = None
    pairs = [(small, leaf.grad) for leaf, small in held_values if leaf is not None]
    done = [(small, grad) for small, grad in pairs if grad is not None]
    if done:
        torch.autograd.backward([small for small, _ in done], [grad for _, grad in done])
