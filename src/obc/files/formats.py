"""The two formats of `obc.export`: how a program is written, and how the file is run again."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from obc.running import onnx
from obc.running.forward import arguments, outputs

Runner = Callable[[Any], list[Tensor]]
"""Runs a file on an example; the tensors it puts out."""


def write_pt2(program: ExportedProgram, path: Path) -> None:
    # Through memory: torch's own writer ends the whole process on a full disk.
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    path.write_bytes(buffer.getbuffer())


def run_pt2(path: Path) -> Runner:
    """Torch reads parts of this format with pickle: only a file just written here is opened."""
    module = torch.export.load(path).module()

    def run(example: Any) -> list[Tensor]:
        args, kwargs = arguments(example)
        with torch.no_grad():
            return outputs(module(*args, **kwargs))

    return run


def write_onnx(program: ExportedProgram, path: Path) -> None:
    onnx.of_program(program).save(str(path), external_data=False)


def run_onnx(path: Path) -> Runner:
    session = onnx.session_of(path)

    def run(example: Any) -> list[Tensor]:
        return [torch.from_numpy(x) for x in session.run(None, onnx.feed(session, example))]

    return run


@dataclass(frozen=True)
class Format:
    """How a program is written and run again, and the packages that takes."""

    write: Callable[[ExportedProgram, Path], None]
    run: Callable[[Path], Runner]
    needs: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse before anything is done if a package is missing."""
        onnx.check(self.needs)


FORMATS = {
    ".onnx": Format(write_onnx, run_onnx, onnx.PACKAGES),
    ".pt2": Format(write_pt2, run_pt2),
}
