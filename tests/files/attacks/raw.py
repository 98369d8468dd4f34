"""Artifacts taken apart and put together by hand, so that anything can be written into them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Damage = Callable[[Path], None]
Attack = tuple[Damage, str]
"""What to do to a folder, and what the refusal must say."""


def header(folder: Path) -> tuple[dict[str, Any], bytes]:
    """The header and the data of the tensors' file."""
    content = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def write(folder: Path, head: dict[str, Any] | bytes, data: bytes) -> None:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    content = len(text).to_bytes(8, "little") + text + data
    (folder / "model.safetensors").write_bytes(content)


def seal(folder: Path, plan: bytes) -> None:
    """Replace the plan, and have the tensors' file name its digest, as if both were saved so."""
    (folder / "plan.json").write_bytes(plan)
    head, data = header(folder)
    head["__metadata__"]["obc.plan"] = hashlib.sha256(plan).hexdigest()
    write(folder, head, data)
