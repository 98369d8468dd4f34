"""One process or many, by accelerate: devices, mixed precision, sharing, tracking."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.state import AcceleratorState  # type: ignore[import-untyped]
from accelerate.utils import DistributedType  # type: ignore[import-untyped]
from torch import Tensor, distributed, nn

from obc.errors import ObcError
from obc.running.processes import Group


class Processes:
    """What a run asks of accelerate, and nothing else."""

    def __init__(self, amp: str, out: Path | None, tracker: Any) -> None:
        if amp == "fp16" and not torch.cuda.is_available():
            raise ObcError("amp: 'fp16' needs a GPU; on a CPU use 'bf16' or 'no'")
        self._fresh = not AcceleratorState._shared_state
        try:
            self._accelerator = Accelerator(
                mixed_precision=amp,
                log_with=tracker if out is not None else None,
                project_dir=str(out) if out is not None else None,
            )
        except ValueError as error:
            raise ObcError(f"accelerate cannot start: {error}") from error
        a = self._accelerator
        self._group = Group()
        self.rank: int = a.process_index
        self.world: int = a.num_processes
        self.device: torch.device = a.device
        self.main: bool = a.is_main_process
        self.sharded = a.distributed_type == DistributedType.FSDP

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Not `end_training`: it leaves the last hold on the process group to a model's replica,
        # and the two lock each other out when that is collected. The next run needs it, too.
        for tracker in self._accelerator.trackers:
            tracker.finish()
        if self._fresh:  # or the next run could not choose another precision
            AcceleratorState._reset_state()
        if self.world > 1 and _lost(error):
            raise ObcError(f"another process has ended: {error}") from error

    def start_tracking(self, config: dict[str, Any]) -> None:
        plain = (int, float, str, bool)
        self._accelerator.init_trackers(
            "tracking", {k: v for k, v in config.items() if isinstance(v, plain)}
        )

    def log(self, numbers: dict[str, float], step: int) -> None:
        self._accelerator.log(numbers, step=step)

    def prepared(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, Any]:
        first, second = self._accelerator.prepare(model, optimizer)
        return first, second

    def unwrapped(self, model: nn.Module) -> nn.Module:
        unwrapped: nn.Module = self._accelerator.unwrap_model(model)
        return unwrapped

    def inner(self, optimizer: Any) -> torch.optim.Optimizer:
        """torch's own optimizer."""
        inner: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
        return inner

    def backward(self, loss: Tensor) -> None:
        self._accelerator.backward(loss)

    def apart(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Inside, gradients are added up without being shared."""
        context: AbstractContextManager[Any] = self._accelerator.no_sync(model)
        return context

    def autocast(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._accelerator.autocast()
        return context

    def unscale(self, optimizer: Any) -> None:
        self._accelerator.unscale_gradients(optimizer)

    def clip(self, model: nn.Module, most: float) -> None:
        self._accelerator.clip_grad_norm_(model.parameters(), most)

    def scaler_state(self) -> dict[str, Any]:
        scaler = self._accelerator.scaler
        return dict(scaler.state_dict()) if scaler is not None else {}

    def set_scaler_state(self, state: dict[str, Any]) -> None:
        if self._accelerator.scaler is not None and state:
            self._accelerator.scaler.load_state_dict(state)

    def summed(self, value: Tensor) -> Tensor:
        """The same sum in every process."""
        return self._group.summed(value)

    def mean(self, value: Tensor) -> float:
        return float(self.summed(value)) / self.world

    def broadcast(self, value: Tensor) -> None:
        """The first process's value, for all."""
        self._group.broadcast(value)

    def gathered(self, states: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        """Every process's tensors, in the order of their ranks."""
        parts = {name: self._group.gathered(tensor) for name, tensor in states.items()}
        return [{name: parts[name][rank] for name in states} for rank in range(self.world)]

    def once(self, action: Callable[[], None]) -> None:
        """In the first process only; if it fails there, it fails in all."""
        failure = None
        if self.main:
            try:
                action()
            except ObcError as error:
                failure = error
        flag = torch.tensor(float(failure is not None))
        if float(self.summed(flag)):
            raise failure or ObcError("the first process failed; its own error says why")


def _lost(error: BaseException | None) -> bool:
    """Whether a collective failed because somebody left."""
    return isinstance(error, distributed.DistError) or (
        isinstance(error, RuntimeError) and ("gloo" in str(error) or "NCCL" in str(error))
    )
