"""The states of all random generators as tensors, so that a checkpoint can hold them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor


def seed(number: int) -> None:
    """Start the generators of Python, numpy and torch from one number."""
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)  # CUDA's generators too


def seed_all(*numbers: int) -> None:
    """Start the generators from several numbers, mixed so that (1, 2) is far from (2, 1)."""
    seed(np.random.SeedSequence(numbers).generate_state(1).item())


def capture() -> dict[str, Tensor]:
    """The states of the generators of torch, Python and numpy, and of CUDA where there is one."""
    _, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    states = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor(words, dtype=torch.int64),
        "python.gauss": torch.tensor([gauss is not None, gauss or 0.0], dtype=torch.float64),
        "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64)),
        "numpy.position": torch.tensor([position, has_gauss], dtype=torch.int64),
        "numpy.gauss": torch.tensor([cached], dtype=torch.float64),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore(states: Mapping[str, Tensor]) -> None:
    """Put the generators back to the states that `capture` returned."""
    torch.set_rng_state(states["torch"])
    has_gauss, gauss = states["python.gauss"].tolist()
    random.setstate((3, tuple(states["python"].tolist()), gauss if has_gauss else None))
    position, has_gauss = states["numpy.position"].tolist()
    keys = states["numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, position, has_gauss, states["numpy.gauss"].item()))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


@contextmanager
def forked(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Torch's generators, on the CPU and wherever these tensors are, are put back afterwards."""
    devices = {t.device for t in tensors if t.device.type not in ("cpu", "meta")}
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        for device in devices:  # each kind has a module of its own: torch.cuda, torch.xpu, ...
            stack.enter_context(torch.random.fork_rng([device], device_type=device.type))
        yield


@contextmanager
def kept() -> Iterator[None]:
    """Whatever is drawn inside, the generators are afterwards as they were.

    >>> with kept():
    ...     inside = torch.rand(1)
    >>> bool(torch.rand(1) == inside)
    True
    """
    before = capture()
    try:
        yield
    finally:
        restore(before)
