"""Tensors whose numbers lie in a file on the disk: the kernel brings in what is being read."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor


def is_mapped(tensor: Tensor) -> bool:
    """Whether a tensor's numbers lie in a file."""
    return tensor.layout is torch.strided and _file(tensor) is not None


def mapped(tensor: Tensor, folder: str | os.PathLike[str]) -> Tensor:
    """The same numbers in a file of their own, which is gone when the tensor is.

    Such a tensor is written and differentiated through like any other, and takes no memory that
    another process could not have: pages that were read are dropped, those written go to the disk.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     one = mapped(torch.arange(3.0), folder)
    ...     one += 1
    ...     one, is_mapped(one), os.listdir(folder)
    (tensor([1., 2., 3.]), True, [])
    """
    if not tensor.numel():
        return tensor.detach().clone()
    handle, path = tempfile.mkstemp(dir=folder, prefix="obc-")
    os.close(handle)
    try:
        flat = torch.from_file(path, shared=True, size=tensor.numel(), dtype=tensor.dtype)
    finally:
        os.unlink(path)
    twin = flat.view(tensor.shape)
    with torch.no_grad():
        twin.copy_(tensor)
    return twin


def kept_as(value: Tensor, tensor: Tensor) -> Tensor:
    """A value that takes the place of a tensor, in a file if that is in one."""
    path = _file(tensor) if tensor.layout is torch.strided else None
    return value if path is None else mapped(value, Path(path).parent)


def _file(tensor: Tensor) -> str | None:
    if tensor.device.type != "cpu":
        return None
    path: str | None = tensor.untyped_storage().filename
    return path
