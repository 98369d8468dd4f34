"""The tensors of a model and of a file: collected, compared, written and put in their places."""

from __future__ import annotations

import base64
import json
import math
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from obc.disk import digest
from obc.errors import ObcError, closest
from obc.files.artifact import Artifact, Stored

_HEADER = 32 * 2**20  # bytes; a hundred thousand tensors take a third of it
_APART = 1 << 16  # bytes of a buffer that may stand in plan.json
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
"""Every type a file may hold, by the name that safetensors gives it."""


class Slot:
    """A place in a module that holds a parameter or a buffer."""

    def __init__(self, name: str, store: dict[str, Tensor | None], key: str) -> None:
        self.name, self._store, self._key = name, store, key

    @property
    def tensor(self) -> Tensor:
        tensor = self._store[self._key]
        assert tensor is not None
        return tensor

    def put(self, tensor: Tensor) -> None:
        self._store[self._key] = tensor


def slots(model: nn.Module) -> list[Slot]:
    """All places of a model, under every name: shared modules and buffers outside the state too."""
    return [
        Slot(f"{path}.{key}" if path else key, store, key)
        for path, module in model.named_modules(remove_duplicate=False)
        for store in (module._parameters, module._buffers)
        for key, tensor in store.items()
        if tensor is not None
    ]


def collect(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor once, by its first name, and the other names it goes by.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    >>> net[2].weight = net[0].weight
    >>> collect(net)[1]
    {'2.weight': '0.weight'}
    """
    first: dict[int, str] = {}
    tensors: dict[str, Tensor] = {}
    ties: dict[str, str] = {}
    for slot in slots(model):
        name = first.setdefault(id(slot.tensor), slot.name)
        if name == slot.name:
            tensors[name] = slot.tensor
        else:
            ties[slot.name] = name
    return tensors, ties


def outside_state(model: nn.Module) -> set[str]:
    """Small buffers that a state dict leaves out: other readers of the tensors expect none.

    >>> net = nn.Module()
    >>> net.register_buffer("table", torch.arange(3), persistent=False)
    >>> outside_state(net)
    {'table'}
    """
    names = set()
    for path, module in model.named_modules():
        for key in module._non_persistent_buffers_set:
            tensor = module._buffers.get(key)
            if tensor is not None and tensor.numel() * tensor.element_size() <= _APART:
                names.add(f"{path}.{key}" if path else key)
    return names


def check_storable(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Refuse what a file could not give back."""
    for path, module in model.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise ObcError(f"'{path}' ({type(module).__name__}) keeps extra state, no tensors")
    for name, tensor in tensors.items():
        if is_lazy(tensor):
            raise ObcError(f"'{name}' has no shape yet: run the model once")
        if tensor.is_meta:
            raise ObcError(f"'{name}' is on the meta device: there is nothing to save")
        if tensor.layout is not torch.strided or is_traceable_wrapper_subclass(tensor):
            raise ObcError(f"'{name}' is no plain tensor but {type(tensor).__name__}")
        if tensor.dtype not in _NAMES:
            raise ObcError(f"'{name}' is {tensor.dtype}, which safetensors cannot hold")


def write(tensors: Mapping[str, Tensor], path: str | os.PathLike[str], note: str) -> None:
    """A safetensors file; `note` is the digest of the plan that it belongs to."""
    plain = {n: _plain(t) for n, t in tensors.items()}
    shared = {t.untyped_storage().data_ptr() for t in plain.values() if t.numel()}
    if len(shared) < sum(t.numel() > 0 for t in plain.values()):
        plain = {n: t.clone() for n, t in plain.items()}  # views of one memory are stored apart
    # "format" is what Hugging Face asks of a file.
    notes = {"format": "pt", "obc.plan": note}
    save_file(plain, path, metadata=notes)
    _settle(path, notes)


def _settle(path: str | os.PathLike[str], notes: Mapping[str, str]) -> None:
    """Put a file's notes in their order, so that the same model gives the same file.

    safetensors keeps them in a hash map, whose order changes from call to call.
    """
    ordered = json.dumps({"__metadata__": notes}, separators=(",", ":"))[:-1].encode()
    with open(path, "r+b") as file:
        file.seek(8)  # behind the length of the header
        if sorted(file.read(len(ordered))) == sorted(ordered):
            file.seek(8)
            file.write(ordered)


def stored(tensors: Mapping[str, Tensor], apart: Collection[str] = ()) -> dict[str, Stored]:
    """What the plan says of each tensor, with the numbers of those that are kept apart."""
    return {
        n: Stored(
            dtype=_NAMES[t.dtype],
            shape=list(t.shape),
            sha256=digest.of_tensor(t),
            data=base64.b64encode(digest.raw(t)).decode() if n in apart else None,
        )
        for n, t in tensors.items()
    }


def _tensor(file: Any, name: str, entry: Stored) -> Tensor:
    """A tensor from where it is: the file, or the plan."""
    if entry.data is None:
        tensor: Tensor = file.get_tensor(name)
        return tensor
    kind = next(d for d, n in _NAMES.items() if n == entry.dtype)
    try:
        content = bytearray(base64.b64decode(entry.data, validate=True))
    except ValueError:
        raise ObcError(f"'{name}' in plan.json is no base64") from None
    if len(content) != math.prod(entry.shape) * kind.itemsize:
        raise ObcError(f"'{name}' in plan.json has {len(content)} bytes, not those of its shape")
    flat = torch.frombuffer(content, dtype=kind) if content else torch.empty(0, dtype=kind)
    return flat.reshape(entry.shape)


def _plain(tensor: Tensor) -> Tensor:
    """The same numbers in main memory, row by row."""
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    """A safetensors file, its header checked; nothing of its data is read yet."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise ObcError(f"{path} cannot be read: it is no regular file")
        with open(path, "rb") as raw:
            header = int.from_bytes(raw.read(8), "little")
        if header > min(status.st_size - 8, _HEADER):
            raise ObcError(f"{path} is no safetensors file, or is not complete")
        file = safe_open(path, framework="pt")
    except FileNotFoundError:
        raise ObcError(f"no model at {path}") from None
    except SafetensorError as error:
        raise ObcError(f"{path} is no safetensors file, or is not complete: {error}") from None
    except (OSError, RuntimeError, MemoryError) as error:
        raise ObcError(f"{path} cannot be read: {error}") from None
    with file:
        yield file


def check_file(file: Any, artifact: Artifact) -> None:
    """The file holds what the plan says, name by name, to the bit."""
    names = set(file.keys())
    inside = {n: entry for n, entry in artifact.tensors.items() if entry.data is None}
    for name, entry in inside.items():
        if name not in names:
            raise ObcError(f"model.safetensors holds no '{name}'{closest(name, names)}")
        there = file.get_slice(name)
        if there.get_dtype() != entry.dtype or there.get_shape() != entry.shape:
            raise ObcError(
                f"'{name}' is {there.get_dtype()} {there.get_shape()} in model.safetensors, "
                f"{entry.dtype} {entry.shape} in plan.json"
            )
    extra = names - inside.keys()
    if extra:
        raise ObcError(f"model.safetensors holds '{min(extra)}', of which plan.json knows nothing")
    for name, entry in artifact.tensors.items():
        if entry.dtype not in _NAMES.values():
            raise ObcError(f"'{name}' is {entry.dtype}, which this version does not read")
        if digest.of_tensor(_tensor(file, name, entry)) != entry.sha256:
            raise ObcError(f"'{name}' is damaged: its bytes are not those that were saved")


def check_model(model: nn.Module, artifact: Artifact) -> None:
    """The cut model has the places for what the file holds."""
    tensors, ties = collect(model)
    for name, entry in artifact.tensors.items():
        if name not in tensors:
            tied = f"; it is tied to '{ties[name]}' here" if name in ties else ""
            raise ObcError(f"the model has no place for '{name}'{tied or closest(name, tensors)}")
        if list(tensors[name].shape) != entry.shape:
            raise ObcError(
                f"'{name}' is {list(tensors[name].shape)} in the model after the cut, "
                f"{entry.shape} in the file"
            )
    extra = next((n for n in tensors if n not in artifact.tensors), None)
    if extra is not None:
        raise ObcError(f"the file has nothing for '{extra}'")
    if ties != artifact.ties:
        name = min(ties.items() ^ artifact.ties.items())[0]
        raise ObcError(
            f"'{name}' is tied to {ties.get(name)!r} in the model, "
            f"to {artifact.ties.get(name)!r} in the file"
        )


def fill(model: nn.Module, file: Any, artifact: Artifact) -> None:
    """Put the saved tensors into the model, on its device, in the type they were saved in."""
    tensors, ties = collect(model)
    # All of it is at hand before the first place is written.
    values = {n: _tensor(file, n, artifact.tensors[n]).to(_device(t)) for n, t in tensors.items()}
    new: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, old in tensors.items():
            if old.is_meta:
                new[name] = _like(old, values[name].clone())
            elif old.dtype == values[name].dtype:
                old.copy_(values[name])
            else:
                old.data = values[name].clone()
    for slot in slots(model):
        first = ties.get(slot.name, slot.name)
        if first in new:
            slot.put(new[first])


def _device(tensor: Tensor) -> torch.device:
    return torch.device("cpu") if tensor.is_meta else tensor.device


def _like(old: Tensor, value: Tensor) -> Tensor:
    """A parameter or buffer with values in the place of one without."""
    if not isinstance(old, nn.Parameter):
        return value
    new = type(old)(value, old.requires_grad)
    new.__dict__.update(old.__dict__)
    return new
