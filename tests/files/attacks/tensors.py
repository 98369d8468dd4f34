"""Hostile tensor files: headers that lie about the data, and data that is not what was saved."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.files.attacks.raw import Attack, Damage, header, write


def head(edit: Callable[[dict[str, Any]], Any]) -> Damage:
    """Change the header, and leave the data."""

    def damage(folder: Path) -> None:
        found, data = header(folder)
        edit(found)
        write(folder, found, data)

    return damage


def entry(key: str, value: Any) -> Damage:
    return head(lambda h: h["0.bias"].__setitem__(key, value))


def content(change: Callable[[bytes], bytes]) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(change(path.read_bytes()))

    return damage


def moved(name: str, by: int) -> Damage:
    def edit(h: dict[str, Any]) -> None:
        h[name]["data_offsets"] = [n + by for n in h[name]["data_offsets"]]

    return head(edit)


def overlapping(h: dict[str, Any]) -> None:
    """Two tensors of one size in the same place."""
    first, second = (n for n in h if n in ("0.weight", "2.weight"))
    h[first]["data_offsets"] = h[second]["data_offsets"]
    h[first]["shape"] = h[second]["shape"]


def renamed(h: dict[str, Any]) -> None:
    h["../../0.bias"] = h.pop("0.bias")


class Bomb:
    """Writes a file when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch unpickled",)


def torch_saved(_: bytes) -> bytes:
    file = io.BytesIO()
    torch.save({"0.bias": torch.zeros(5), "bomb": Bomb()}, file)
    return file.getvalue()


def raw(text: bytes) -> Damage:
    """Another header altogether."""
    return lambda folder: write(folder, text, header(folder)[1])


def sparse(folder: Path) -> None:
    """A terabyte that takes no room, most of it the header."""
    with open(folder / "model.safetensors", "r+b") as file:
        file.write((2**39).to_bytes(8, "little"))
        file.truncate(2**40)


def sparse_data(folder: Path) -> None:
    """A terabyte of zeros that the header does account for."""
    found, _ = header(folder)
    meta = {"__metadata__": found["__metadata__"]}
    size = 2**38
    write(
        folder,
        meta | {"0.bias": {"dtype": "F32", "shape": [size], "data_offsets": [0, 4 * size]}},
        b"",
    )
    path = folder / "model.safetensors"
    os.truncate(path, path.stat().st_size + 4 * size)


NO = "is no safetensors file, or is not complete"
ATTACKS: dict[str, Attack] = {
    "cut off in the data": (content(lambda c: c[:-1]), NO),
    "cut off in the header": (content(lambda c: c[:100]), NO),
    "cut off in the first word": (content(lambda c: c[:5]), NO),
    "of no bytes": (content(lambda c: b""), NO),
    "with something at the end": (content(lambda c: c + b"\0"), NO),
    "a flipped bit": (content(lambda c: c[:-1] + bytes([c[-1] ^ 1])), "is damaged"),
    "header longer than the file": (content(lambda c: b"\xff" * 8 + c[8:]), NO),
    "header of a terabyte": (sparse, NO),
    "data of a terabyte": (sparse_data, "cannot be read"),
    "header no JSON": (raw(b"\x80\x04]"), NO),
    "header too deep": (raw(b'{"a":' * 5000 + b"1" + b"}" * 5000), NO),
    "header without metadata": (head(lambda h: h.pop("__metadata__")), "not written by obc"),
    "metadata no text": (head(lambda h: h["__metadata__"].update({"obc.plan": 1})), NO),
    "offsets overlapping": (head(overlapping), NO),
    "offsets with a hole": (moved("4.weight", 4), NO),
    "offsets beyond the end": (entry("data_offsets", [0, 10**12]), NO),
    "offsets backwards": (entry("data_offsets", [20, 0]), NO),
    "offsets negative": (entry("data_offsets", [-20, 0]), NO),
    "shape huge": (entry("shape", [2**62]), NO),
    "shape overflowing": (entry("shape", [2**63, 2]), NO),
    "shape overflowing to the right size": (entry("shape", [2**62 + 5, 4]), NO),
    "shape negative": (entry("shape", [-5]), NO),
    "shape of other length": (entry("shape", [4]), NO),
    "type unknown": (entry("dtype", "PICKLE"), NO),
    "type of other width": (entry("dtype", "F64"), NO),
    "type of the same width": (entry("dtype", "I32"), r"in plan\.json"),
    "name a path": (head(renamed), "holds no '0.bias'"),
    "name missing": (head(lambda h: h.pop("4.bias")), NO),
    "a pickle renamed": (content(lambda c: pickle.dumps(Bomb())), NO),
    "a checkpoint renamed": (content(torch_saved), NO),
}
ATTACKS = {f"tensors {name}": attack for name, attack in ATTACKS.items()}
