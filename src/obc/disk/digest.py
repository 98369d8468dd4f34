"""What a file or a model is recognised by: SHA-256 over every bit of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn


def of_bytes(content: bytes) -> str:
    """The digest of a file's content."""
    return hashlib.sha256(content).hexdigest()


def of_tensor(tensor: Tensor) -> str:
    """The digest of a tensor's numbers, row by row, wherever it lies in memory."""
    return hashlib.sha256(raw(tensor)).hexdigest()


def of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """The digest of names, shapes, types and every number; tensors without values count by shape.

    >>> a, b = (of_tensors({"w": torch.tensor([v])}) for v in (1.0, 2.0))
    >>> a == b
    False
    """
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        if not tensor.is_meta:
            total.update(raw(tensor))
    return total.hexdigest()


def of_model(model: nn.Module) -> str:
    """The digest of every parameter and buffer of a model."""
    return of_tensors(dict((*model.named_parameters(), *model.named_buffers())))


def raw(tensor: Tensor) -> memoryview | bytes:
    """A tensor's numbers as bytes, row by row."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().data if plain.numel() else b""
