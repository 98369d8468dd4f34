"""A reader of artifacts written from docs/format.md alone, without obc and without safetensors."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

KINDS = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",  # numpy has no such type; the bits are enough
    "I64": "<i8",
    "I32": "<i4",
    "U8": "<u1",
    "BOOL": "?",
}


def read(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """The plan, and the tensors under all of their names; an assertion for what is not right."""
    content = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    metadata = header.pop("__metadata__")
    plan_bytes = (folder / "plan.json").read_bytes()
    if hashlib.sha256(plan_bytes).hexdigest() != metadata["obc.plan"]:
        plan_bytes = (folder / ".saving" / "plan.json").read_bytes()
    assert hashlib.sha256(plan_bytes).hexdigest() == metadata["obc.plan"]
    plan = json.loads(plan_bytes)
    assert (plan["format"], plan["version"]) == ("obc.artifact", 1)
    assert {n for n, e in plan["tensors"].items() if "data" not in e} == header.keys()
    tensors = {}
    for name, entry in plan["tensors"].items():
        if "data" in entry:
            numbers = base64.b64decode(entry["data"])
        else:
            begin, end = header[name]["data_offsets"]
            found = header[name]
            assert entry["dtype"] == found["dtype"] and entry["shape"] == found["shape"]
            numbers = data[begin:end]
        assert hashlib.sha256(numbers).hexdigest() == entry["sha256"]
        flat = np.frombuffer(numbers, KINDS[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    for name, first in plan["ties"].items():
        tensors[name] = tensors[first]
    for cut in plan["plans"]:
        assert cut["shapes"].keys() == plan["tensors"].keys() or plan["equivalent"] is not None
        for site in cut["sites"].values():
            kept = site["kept"]
            assert kept == sorted(set(kept)) and kept[0] >= 0 and kept[-1] < site["size"]
    return plan, tensors
