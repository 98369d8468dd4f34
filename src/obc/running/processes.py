"""Several processes that work on one thing: each takes its share, and all end the same.

Collectives get their tensors on the device that their backend works on, since NCCL refuses any
other; the results come back to where they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, distributed

from obc.errors import ObcError


class Group:
    """This process among all that work together; alone, everything is its share.

    >>> alone = Group()
    >>> alone.mine(7), alone.agreed(0.5)
    (True, 0.5)
    """

    def __init__(self) -> None:
        self.several = distributed.is_available() and distributed.is_initialized()
        self.rank = distributed.get_rank() if self.several else 0
        self.count = distributed.get_world_size() if self.several else 1

    def mine(self, number: int) -> bool:
        """Whether the batch with this number is this process's."""
        return number % self.count == self.rank

    @contextmanager
    def together(self, what: str = "scoring") -> Iterator[None]:
        """An error in one process ends all of them, instead of leaving the others to wait."""
        error: Exception | None = None
        try:
            yield
        except Exception as raised:
            error = raised
        if self.several:
            failed = self.summed(torch.tensor([float(error is not None)]))
            if error is None and failed.item():
                error = ObcError(f"{what} failed in another process")
        if error is not None:
            raise error

    def summed(self, value: Tensor) -> Tensor:
        """The sum over all processes, bit for bit the same in each."""
        if not self.several:
            return value
        total = self._there(value)
        distributed.all_reduce(total)
        distributed.broadcast(total, 0)  # the order of a sum may differ from process to process
        return total.to(value.device)

    def largest(self, value: Tensor) -> Tensor:
        """The largest over all processes, number by number."""
        if not self.several:
            return value
        largest = self._there(value)
        distributed.all_reduce(largest, distributed.ReduceOp.MAX)
        return largest.to(value.device)

    def agreed(self, value: float) -> float:
        """The value of the first process, so that all decide alike."""
        if not self.several:
            return value
        first = torch.tensor([value], dtype=torch.float64)
        self.broadcast(first)
        return float(first)

    def broadcast(self, value: Tensor) -> None:
        """Overwrite a tensor by that of the first process."""
        if self.several:
            there = self._there(value)
            distributed.broadcast(there, 0)
            value.detach().copy_(there)

    def gathered(self, value: Tensor) -> list[Tensor]:
        """The tensors of all processes, all of one shape, in the order of their ranks."""
        if not self.several:
            return [value]
        there = self._there(value)
        parts = [torch.empty_like(there) for _ in range(self.count)]
        distributed.all_gather(parts, there)
        return [part.to(value.device) for part in parts]

    def added(self, totals: Mapping[str, Tensor], widths: Mapping[str, int]) -> dict[str, Tensor]:
        """Sums of matrices [rows, width] by name, where a process without a share has none."""
        if not self.several:
            return dict(totals)
        heights = torch.tensor([totals[n].shape[0] if n in totals else 0 for n in widths])
        result = {}
        for (name, width), height in zip(
            widths.items(), self.largest(heights).tolist(), strict=True
        ):
            empty = torch.zeros(height, width, dtype=torch.float64)
            result[name] = self.summed(totals.get(name, empty))
        return result

    def _there(self, value: Tensor) -> Tensor:
        """A copy where the backend works."""
        return value.detach().clone(memory_format=torch.contiguous_format).to(device())


def device() -> torch.device:
    """The device whose tensors the backend of the process group takes."""
    kinds = [kind.type for kind in distributed.group.WORLD._device_types]  # type: ignore[union-attr]
    if "cpu" in kinds or not kinds:
        return torch.device("cpu")
    return torch.device(kinds[0], torch.accelerator.current_device_index())
