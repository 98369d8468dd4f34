"""Hostile folders: links, pipes, devices and folders in the place of files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.files.attacks.raw import Attack, Damage

NAMES = ("model.safetensors", "plan.json")


def instead(name: str, make: Callable[[Path], object]) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return damage


def linked(target: str) -> Callable[[Path], object]:
    return lambda path: path.symlink_to(target)


KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a folder": (Path.mkdir, "no regular file|cannot be read"),
    "a pipe": (os.mkfifo, "no regular file"),
    "a link to a device": (linked("/dev/zero"), "no regular file"),
    "a link to nothing": (linked("nowhere"), "no model at|no artifact at"),
    "a link to itself": (linked("plan.json"), "cannot be read|no safetensors file"),
    "a link to a secret": (linked("/etc/passwd"), "no safetensors file|is not the one"),
    "missing": (lambda path: None, "no model at|no artifact at"),
}


def aside_a_pipe(folder: Path) -> None:
    """The plan is missing, and where an interrupted save leaves one there is a pipe."""
    (folder / "plan.json").unlink()
    (folder / ".saving").mkdir()
    os.mkfifo(folder / ".saving" / "plan.json")


ATTACKS: dict[str, Attack] = {
    f"{name} {kind}": (instead(name, make), text)
    for name in NAMES
    for kind, (make, text) in KINDS.items()
} | {"plan.json aside a pipe": (aside_a_pipe, "no regular file")}
