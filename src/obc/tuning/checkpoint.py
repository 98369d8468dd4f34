"""Checkpoints: one safetensors file each, with JSON in its header; whole, or not there at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from obc.disk import writing
from obc.errors import ObcError

# Whole tensors in every process, whether the model is plain, replicated (DDP) or sharded (FSDP).
WHOLE = StateDictOptions(full_state_dict=True)


def write(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write aside, make sure it is on the disk, then rename."""
    header = {"obc": json.dumps(facts)}
    own = {n: t.detach().cpu().contiguous() for n, t in tensors.items()}
    seen: set[int] = set()
    for name, tensor in own.items():  # tied weights share memory, which the format does not know
        place = tensor.untyped_storage().data_ptr()
        if place in seen:
            own[name] = tensor.clone()
        seen.add(place)

    def fill(aside: Path) -> None:
        try:
            save_file(own, aside, metadata=header)
        except SafetensorError as error:  # what safetensors makes of a full disk
            raise OSError(str(error)) from error

    writing.write(path, fill)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A checkpoint's tensors and facts."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["obc"])
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ObcError(f"{path} is no checkpoint of obc, or a damaged one: {error}") from None


def model_state(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and persistent buffer; to be called in every process."""
    state: dict[str, Any] = get_model_state_dict(model, options=WHOLE)
    return state


def set_model_state(model: nn.Module, tensors: Mapping[str, Any]) -> None:
    set_model_state_dict(model, dict(tensors), options=WHOLE)


def optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Momentum and the like, as "parameter:what"; rates follow from the schedule."""
    every: dict[str, Any] = get_optimizer_state_dict(model, optimizer, options=WHOLE)
    return {
        f"{name}:{key}": value
        for name, own in every["state"].items()
        for key, value in own.items()
        if isinstance(value, Tensor)
    }


def set_optimizer_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    every: dict[str, Any] = get_optimizer_state_dict(model, optimizer, options=WHOLE)
    for name, value in tensors.items():
        parameter, _, key = name.rpartition(":")
        every["state"][parameter][key] = value
    set_optimizer_state_dict(model, optimizer, every, options=WHOLE)


def named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `named` put there, by its own names.

    >>> under("a", named("a", {"w": torch.zeros(1)}))
    {'w': tensor([0.])}
    """
    start = f"{prefix}/"
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
