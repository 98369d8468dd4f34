"""The tensors of a folder: one file, or, where that would be large, several with an index."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from obc.disk import digest
from obc.disk.reading import parse, read_bytes
from obc.errors import ObcError
from obc.files.tensors import opened, write

TENSORS, INDEX = "model.safetensors", "model.safetensors.index.json"
_NAME = r"^model-[0-9a-f]{12}-\d{5}-of-\d{5}\.safetensors$"


class _Notes(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    total_size: Annotated[int, Field(ge=0)]
    plan: Annotated[str, Field(alias="obc.plan", pattern=r"^[0-9a-f]{64}$")]


class _Index(BaseModel):
    """What Hugging Face wants to know, and the digest of the plan; files have names of ours."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    metadata: _Notes
    weight_map: dict[str, Annotated[str, Field(pattern=_NAME)]]


class _Shards:
    """Several safetensors files, read as if they were one."""

    def __init__(self, files: Mapping[str, Any], note: str) -> None:
        self._note = note
        self._places = {name: file for file in files.values() for name in list(file.keys())}

    def metadata(self) -> dict[str, str]:
        return {"obc.plan": self._note}

    def keys(self) -> list[str]:
        return list(self._places)

    def get_tensor(self, name: str) -> Any:
        return self._places[name].get_tensor(name)

    def get_slice(self, name: str) -> Any:
        return self._places[name].get_slice(name)


def parts(tensors: Mapping[str, Tensor], limit: int) -> list[dict[str, Tensor]]:
    """Tensors in their order, so many to a file that it has at most `limit` bytes of them.

    >>> import torch
    >>> [list(part) for part in parts({n: torch.zeros(2) for n in "abc"}, 16)]
    [['a', 'b'], ['c']]
    """
    shards: list[dict[str, Tensor]] = [{}]
    room = limit
    for name, tensor in tensors.items():
        if tensor.nbytes > room and shards[-1]:
            shards.append({})
            room = limit
        shards[-1][name] = tensor
        room -= tensor.nbytes
    return shards


def write_tensors(tensors: Mapping[str, Tensor], folder: Path, note: str, limit: int) -> list[Path]:
    """`model.safetensors`, or shards and their index; `note` is the digest of the plan.

    Shards are named by what they hold, so that new ones stand beside old ones until the index
    is renamed.
    """
    shards = parts(tensors, limit)
    if len(shards) == 1:
        write(tensors, folder / TENSORS, note)
        return [folder / TENSORS]
    split = json.dumps([note, *map(list, shards)])
    stem = f"model-{digest.of_bytes(split.encode())[:12]}"
    names = [f"{stem}-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        write(shard, folder / name, note)
    size = sum(t.nbytes for t in tensors.values())
    content = {
        "metadata": {"total_size": size, "obc.plan": note},
        "weight_map": {n: name for name, shard in zip(names, shards, strict=True) for n in shard},
    }
    (folder / INDEX).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return [folder / name for name in names]


@contextmanager
def tensors_in(folder: Path) -> Iterator[Any]:
    """The tensors of a folder, headers checked; nothing of their data is read yet.

    `model.safetensors` counts, as for Hugging Face, and the index only where there is none.
    """
    if (folder / TENSORS).exists() or not (folder / INDEX).exists():
        with opened(folder / TENSORS) as file:
            yield file
        return
    index = _index(folder)
    with ExitStack() as stack:
        names = sorted(set(index.weight_map.values()))
        files = {name: stack.enter_context(opened(folder / name)) for name in names}
        for name, file in files.items():
            if (file.metadata() or {}).get("obc.plan") != index.metadata.plan:
                raise ObcError(f"{folder / name} was not saved with {INDEX}")
        places = [(key, name) for name, file in files.items() for key in list(file.keys())]
        if sorted(places) != sorted(index.weight_map.items()):
            raise ObcError(f"{folder / INDEX} does not say where the tensors are")
        yield _Shards(files, index.metadata.plan)


def _index(folder: Path) -> _Index:
    what = "an index of obc.save"
    return parse(_Index, read_bytes(folder / INDEX, what), folder / INDEX, what)


def is_saved(folder: Path) -> bool:
    """Whether a folder holds tensors, as one file or by an index."""
    return any((folder / name).is_file() for name in (TENSORS, INDEX))


def size_of(folder: Path) -> int:
    """Bytes of all files of tensors."""
    return sum(path.stat().st_size for path in _files(folder))


def place(aside: Path, folder: Path) -> None:
    """Move new tensors to where they are read; the last step is the moment at which they count."""
    for path in sorted(aside.iterdir()):
        if re.match(_NAME, path.name):
            os.replace(path, folder / path.name)
    if (aside / INDEX).exists():
        os.replace(aside / INDEX, folder / INDEX)
        (folder / TENSORS).unlink(missing_ok=True)
    else:
        os.replace(aside / TENSORS, folder / TENSORS)


def sweep(folder: Path) -> None:
    """Remove shards that no tensors of the folder are in, and an index that does not count."""
    files = _files(folder)
    if folder / TENSORS in files and (folder / INDEX).exists():
        (folder / INDEX).unlink()
    for path in sorted(folder.iterdir()):
        if re.match(_NAME, path.name) and path not in files:
            path.unlink()


def _files(folder: Path) -> list[Path]:
    """The files that hold the tensors of a folder, obc's or plain Hugging Face's."""
    if (folder / TENSORS).exists() or not (folder / INDEX).exists():
        return [folder / TENSORS]
    places = json.loads(read_bytes(folder / INDEX, "an index"))["weight_map"]
    return [folder / name for name in sorted(set(places.values()))]
