"""`obc.export`: ONNX or a torch program, believed only when the file has run like the model."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from obc.disk.location import location
from obc.disk.writing import write
from obc.equivalent.attach import is_equivalent
from obc.errors import ObcError
from obc.files.formats import FORMATS, Runner
from obc.files.gguf import write_gguf
from obc.files.inputs import Inputs
from obc.running.difference import NothingToCompare, difference, distance
from obc.running.forward import arguments, forward, outputs
from obc.running.modules import check_model, in_double
from obc.running.onnx import as_it_runs
from obc.running.timing import race

_BATCHES = (1, 3, 5)
_ROUNDINGS = 4  # so many times the model's own rounding a file may be off
_BLURRED = 0.05  # where rounding changes outputs by more, they say nothing of the file


@dataclass(frozen=True)
class Measured:
    """What a file takes: bytes on disk, and seconds for one run of the example."""

    bytes: int
    seconds: float | None = None  # of a GGUF, which another program runs


@dataclass(frozen=True)
class Export:
    """What was written, how far its outputs are from the model's, and what it takes.

    `batch` is the only batch size that the file takes, where the model itself fixes it.
    """

    path: Path
    error: float
    pruned: Measured
    original: Measured | None = None
    batch: int | None = None

    def __str__(self) -> str:
        rows = [("model" if self.original is None else "pruned", self.pruned)]
        if self.original is not None:
            rows.insert(0, ("original", self.original))
        lines = [
            f"{n:9}{m.bytes / 1e6:10.3f} MB"
            + ("" if m.seconds is None else f"{m.seconds * 1e3:10.3f} ms")
            for n, m in rows
        ]
        if self.batch is not None:
            lines.append(f"for a batch of {self.batch} and no other: the model fixes it")
        return "\n".join([f"{self.path.name}: relative error {self.error:.1e}", *lines])


def export(
    model: nn.Module,
    example: Any,
    path: str | os.PathLike[str],
    *,
    original: nn.Module | None = None,
) -> Export:
    """Write `model.onnx`, `model.pt2` or `model.gguf`, check the file, and say what it takes.

    The batch, the first dimension of the inputs, may have any size; an example of two or more
    rows shows which inputs have a batch. The file is run on fresh inputs in several batch sizes
    and must put out what the model does, up to rounding, its own in double precision where that is
    more than usual; otherwise there is an error and no file. Where the model
    itself fixes the batch, as a detector does that keeps its anchors, the file takes the example's
    batch size only, and says so. With `original`, the model before pruning, both are measured side
    by side.

    A `.gguf` is for llama.cpp: decoders of transformers, also where widths differ over layers. It
    is read back and compared tensor by tensor.

    A `.pt2` is torch's own format, which torch reads with pickle: load it only where you trust it.

    >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(net, torch.randn(1, 4), f"{folder}/net.pt2").error
    0.0
    """
    check_model(model)
    target = location(path)
    if original is not None:
        check_model(original)
    known = (*FORMATS, ".gguf")
    if target.suffix not in known:
        raise ObcError(f"{target.name} ends in none of {', '.join(known)}")
    if not target.parent.is_dir():
        raise ObcError(f"no folder {target.parent}")
    if target.suffix == ".gguf":
        _check_merged(model)
        write(target, lambda aside: write_gguf(model, aside))
        return Export(target, 0.0, Measured(target.stat().st_size))
    FORMATS[target.suffix].check()
    inputs = Inputs(example)
    aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        made = _any_batch(model, inputs, aside / f"pruned{target.suffix}")
        runs, sizes = [made.run], [(aside / f"pruned{target.suffix}").stat().st_size]
        if original is not None:
            other = aside / f"original{target.suffix}"
            runs.append(_any_batch(original, inputs, other).run)
            sizes.append(other.stat().st_size)
        times = [min(seconds) for seconds in race([partial(run, inputs.example) for run in runs])]
        pruned, *others = (Measured(n, t) for n, t in zip(sizes, times, strict=True))
        _sync(aside / f"pruned{target.suffix}")
        os.replace(aside / f"pruned{target.suffix}", target)
    except OSError as error:
        kept = "; what was there before is kept" if target.exists() else ""
        raise ObcError(f"{target} cannot be written: {error}{kept}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return Export(target, made.error, pruned, next(iter(others), None), made.batch)


class _FixedBatch(ObcError):
    """The model, or its graph, may be for one batch size only."""


@dataclass(frozen=True)
class _Made:
    """A file that was written and has run: how, how far off, and the batch, if it is fixed."""

    run: Runner
    error: float
    batch: int | None


def _any_batch(model: nn.Module, inputs: Inputs, path: Path) -> _Made:
    """Write a file for any batch; where that fails, one for the example's batch."""
    _check_merged(model)
    try:
        forward(model, inputs.example)
    except Exception as error:
        raise ObcError(f"the model rejects the example: {_said(error)}") from error
    try:
        return _made(model, inputs, path, None)
    except _FixedBatch as failure:
        try:
            made = _made(model, inputs, path, inputs.batch)
        except ObcError:
            raise failure from None
    warnings.warn(
        f"{path.suffix[1:]}: the model fixes its batch, so the file takes a batch of "
        f"{inputs.batch} and no other",
        stacklevel=3,
    )
    return made


def _made(model: nn.Module, inputs: Inputs, path: Path, batch: int | None) -> _Made:
    """Write a file for a batch, or for any, run it, and compare."""
    form = FORMATS[path.suffix]
    # Where any batch is wanted, not 1, which torch takes for a constant.
    args, kwargs = arguments(inputs.of(batch or max(2, inputs.batch)))
    shapes = inputs.dynamic if batch is None else None
    if shapes is not None and not kwargs:
        shapes = tuple(shapes) if isinstance(shapes, (tuple, list)) else (shapes,)
    try:
        with as_it_runs(model):
            program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)
        form.write(program, path)
        run = form.run(path)
    except (ObcError, OSError):
        raise
    except Exception as error:
        raise _FixedBatch(f"no {path.suffix} of this model: {_said(error)}") from error
    batches = _BATCHES if batch is None else (batch,)
    return _Made(run, max(_compare(model, run, inputs, n) for n in batches), batch)


def _check_merged(model: nn.Module) -> None:
    if is_equivalent(model):
        raise ObcError("the model holds factors of an equivalent pruning; obc.merge(model) first")


def _compare(model: nn.Module, made: Runner, inputs: Inputs, batch: int) -> float:
    example = inputs.fresh(batch, seed=batch)
    try:
        expected = outputs(forward(model, example))
    except Exception as error:
        raise _FixedBatch(f"the model rejects a batch of {batch}: {_said(error)}") from error
    try:
        there = [t.cpu() for t in made(example)]
    except Exception as error:
        raise ObcError(
            f"the exported file fails for a batch of {batch}: it does not run: {_said(error)}; "
            "nothing is written"
        ) from error
    expected = [t.cpu() for t in expected]
    try:
        return difference(expected, there)
    except NothingToCompare:
        raise
    except ObcError:
        off, reason = distance(expected, there), _beyond_rounding(model, example, expected, there)
        if reason is None:
            return off
    raise ObcError(f"the exported file fails for a batch of {batch}: {reason}; nothing is written")


def _beyond_rounding(
    model: nn.Module, example: Any, expected: list[Tensor], made: list[Tensor]
) -> str | None:
    """What speaks against a file that is off by more than rounding commonly is; None if nothing.

    Some networks let rounding grow: large weights whose products cancel. The same model in double
    precision shows by how much, and a file may be off by a small multiple of that.
    """
    shapes = [[tuple(t.shape) for t in outs] for outs in (made, expected)]
    if shapes[0] != shapes[1]:
        return f"it puts out {shapes[0]} instead of {shapes[1]}"
    differs = f"it differs from the model by {distance(expected, made):.2g}"
    try:
        exact = [t.cpu() for t in outputs(forward(*in_double(model, example)))]
    except Exception:
        return f"{differs}, and the model does not run in double precision to show its rounding"
    own, off = distance(exact, expected), distance(exact, made)
    if off <= _ROUNDINGS * own and own <= _BLURRED:
        return None
    if own > _BLURRED:
        return f"{differs}, and the model's own rounding, {own:.2g}, is too much to compare by"
    return (
        f"{differs}, more than rounding: from double precision the model is {own:.2g} away, the "
        f"file {off:.2g}"
    )


def _said(error: Exception) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
