"""A folder with an artifact: replaced as a whole, whatever happens on the way.

`model.safetensors`, or the index of its shards, names the digest of its plan, so the rename of that
one file is the moment at which the old artifact becomes the new one. Until then nothing of the old
one is touched; after it, the plan is found in `.saving` if the crash came before it was moved.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, get_args

from safetensors import SafetensorError

from obc.disk import digest
from obc.disk.claim import make
from obc.disk.reading import parse, read_bytes
from obc.errors import ObcError
from obc.files.artifact import Artifact, Beside
from obc.files.shards import TENSORS, is_saved, place, sweep, tensors_in

PLAN, ASIDE = "plan.json", ".saving"
_WHAT = "an artifact"
_LOOKS = 4  # at a folder that others save to meanwhile


@contextmanager
def reading(folder: Path) -> Iterator[tuple[Any, Artifact]]:
    """The tensors of a folder, not read yet, and the plan that goes with them."""
    for left in reversed(range(_LOOKS)):
        with ExitStack() as stack:
            try:
                before = _file_at(folder / TENSORS)
                file = stack.enter_context(tensors_in(folder))
                artifact = _plan_of(folder, (file.metadata() or {}).get("obc.plan"))
                # Header and values are opened one after the other: both are to be of one file.
                if _file_at(folder / TENSORS) != before:
                    raise ObcError(f"{folder / TENSORS} was replaced while it was opened")
            except ObcError:
                if not left:
                    raise
                continue  # another process may have saved just now; another look will be whole
            yield file, artifact
            return


def _file_at(path: Path) -> tuple[int, int, int] | None:
    """What tells the file of this name from another one."""
    try:
        there = path.stat()
    except OSError:
        return None
    return there.st_ino, there.st_mtime_ns, there.st_size


def _plan_of(folder: Path, note: str | None) -> Artifact:
    """The plan with this digest."""
    if note is None:
        raise ObcError(f"{folder / TENSORS} was not written by obc.save")
    places = [p for p in (folder / PLAN, folder / ASIDE / PLAN) if p.exists()]
    for path in places or [folder / PLAN]:
        content = read_bytes(path, _WHAT)
        if digest.of_bytes(content) == note:
            return parse(Artifact, content, path, _WHAT)
    raise ObcError(
        f"{folder / PLAN} is not the one that {TENSORS} was saved with: "
        "it was changed, or belongs to another model"
    )


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A place to write the new files into; they take the old ones' place when all are there."""
    aside = make(folder) / ASIDE
    with _alone(folder):
        _check_ours(folder)
        _finish(folder)
        shutil.rmtree(aside, ignore_errors=True)
        try:
            aside.mkdir()
        except FileExistsError:
            raise ObcError(f"{aside} is in the way; remove it") from None
        try:
            yield aside
            for path in aside.iterdir():
                _sync(path)
            _sync(aside)
            _sync(folder)
        except (OSError, SafetensorError) as error:  # a full disk, say
            shutil.rmtree(aside, ignore_errors=True)
            kept = "; what was there before is kept" if is_saved(folder) else ""
            raise ObcError(f"{folder} cannot be written: {error}{kept}") from error
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        place(aside, folder)
        _sync(folder)
        _finish(folder)


def _check_ours(folder: Path) -> None:
    """Somebody else's model is not overwritten."""
    if is_saved(folder):
        with tensors_in(folder) as file:
            if "obc.plan" not in (file.metadata() or {}):
                raise ObcError(
                    f"{folder / TENSORS} was not written by obc.save; choose another folder"
                )


def _finish(folder: Path) -> None:
    """Bring the other files after the tensors, also those of a save that was cut short."""
    plan = folder / ASIDE / PLAN
    if not plan.exists() or not is_saved(folder):
        return
    with tensors_in(folder) as file:
        note = (file.metadata() or {}).get("obc.plan")
    content = read_bytes(plan, _WHAT)
    if digest.of_bytes(content) != note:
        return
    new = parse(Artifact, content, plan, _WHAT)
    old = _written_before(folder)
    for name in get_args(Beside):
        if (folder / ASIDE / name).exists():
            os.replace(folder / ASIDE / name, folder / name)
        elif name in old and name not in new.beside:
            (folder / name).unlink(missing_ok=True)
    sweep(folder)
    os.replace(plan, folder / PLAN)
    _sync(folder)
    shutil.rmtree(folder / ASIDE, ignore_errors=True)


def _written_before(folder: Path) -> list[Beside]:
    try:
        return parse(Artifact, read_bytes(folder / PLAN, _WHAT), folder / PLAN, _WHAT).beside
    except ObcError:
        return []


def _sync(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on the disk."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:  # Windows opens no folders
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two processes that save to one folder take turns; a dead one holds nobody up."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
