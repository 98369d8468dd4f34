"""How long a model takes for its example on this machine."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed, nn
from torch.utils.benchmark import Timer

from obc.trace.running import arguments

_WARM_UP = 3
_AT_LEAST = 0.2  # seconds of measuring


def seconds(model: nn.Module, example: Any) -> float:
    """The median time of one run in eval mode, after a warm-up; the first process's for all."""
    args, kwargs = arguments(example)
    modes = [(m, m.training) for m in model.modules()]
    for module, _ in modes:
        module.training = False
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=_devices(model)):
            for _ in range(_WARM_UP):
                model(*args, **kwargs)
            timer = Timer(
                "model(*args, **kwargs)",
                globals={"model": model, "args": args, "kwargs": kwargs},
                num_threads=torch.get_num_threads(),
            )
            found = float(timer.blocked_autorange(min_run_time=_AT_LEAST).median)
    finally:
        for module, training in modes:
            module.training = training
    return agreed(found)


def agreed(value: float) -> float:
    """The value of the first process, so that all decide alike."""
    if distributed.is_available() and distributed.is_initialized():
        told = torch.tensor([value], dtype=torch.float64)
        distributed.broadcast(told, 0)
        return float(told)
    return value


def _devices(model: nn.Module) -> list[torch.device]:
    return list({p.device for p in model.parameters() if p.device.type not in ("cpu", "meta")})
