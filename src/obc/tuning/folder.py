"""The folder of a run: whose it is, and whether the run at hand may go on in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from obc.data import Images
from obc.disk import digest
from obc.errors import ObcError
from obc.tuning.checkpoint import write_json
from obc.tuning.recipe import Recipe

FORMAT = 1
ABOUT, LAST, BEST = "run.json", "last.safetensors", "best.safetensors"
FINAL, RESULT = "model.safetensors", "result.json"


def describe(
    recipe: Recipe, weights: Mapping[str, Tensor], train: Any, teacher: bool, world: int
) -> dict[str, Any]:
    """All that must be the same for a run to go on where it stopped."""
    images = {"images": len(train), "shape": list(train.shape)} if isinstance(train, Images) else {}
    return {
        "format": FORMAT,
        "recipe": recipe.model_dump(mode="json"),
        "weights": digest.of_tensors(weights),
        "data": images or {"batches": len(train)},
        "teacher": teacher,
        "processes": world,
    }


def claim(folder: Path, about: dict[str, Any], resume: bool) -> None:
    """Make a folder this run's own, or find that it is; refuse anybody else's."""
    own = folder / ABOUT
    if not folder.exists():
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise ObcError(f"{folder} cannot be made: {error}") from None
    if not folder.is_dir():
        raise ObcError(f"{folder} is a file; out must be a folder")
    if not own.is_file():
        if any(not f.name.startswith(f".{ABOUT}-") for f in folder.iterdir()):
            raise ObcError(f"{folder} holds files but no run; choose a new folder")
        write_json(own, about)
        return
    if not resume:
        raise ObcError(f"{folder} holds a run already; resume=True goes on with it")
    different = next(iter(_differences(_read(own), about)), None)
    if different is not None:
        raise ObcError(f"{folder} holds another run: {different}; choose a new folder")


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ObcError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ObcError(f"{path} is not the description of a run this version reads")
    return found


def _differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """In words, the recipe's fields first."""
    found = []
    old, new = there.get("recipe", {}), here["recipe"]
    for name in new:
        if old.get(name) != new[name]:
            found.append(f"its {name} is {old.get(name)!r}, not {new[name]!r}")
    if there.get("weights") != here["weights"]:
        found.append("it began from other weights")
    for name in ("data", "teacher", "processes"):
        if there.get(name) != here[name]:
            found.append(f"its {name} was {there.get(name)!r}, not {here[name]!r}")
    return found
