"""The two formats of `obc.export`: how a program is written, and how the file is run again."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

from obc.errors import ObcError
from obc.running.forward import arguments, outputs

Runner = Callable[[Any], list[Tensor]]
"""Runs a file on an example; the tensors it puts out."""

_LARGEST = 2**31 - 2**24  # bytes; what one ONNX file can hold, with room for its graph


def write_pt2(program: ExportedProgram, path: Path) -> None:
    torch.export.save(program, path)


def run_pt2(path: Path) -> Runner:
    """Torch reads parts of this format with pickle: only a file just written here is opened."""
    module = torch.export.load(path).module()

    def run(example: Any) -> list[Tensor]:
        args, kwargs = arguments(example)
        with torch.no_grad():
            return outputs(module(*args, **kwargs))

    return run


def write_onnx(program: ExportedProgram, path: Path) -> None:
    size = sum(t.numel() * t.element_size() for t in program.state_dict.values())
    if size > _LARGEST:
        raise ObcError(f"{size} bytes of weights are more than one ONNX file holds; use .pt2")
    with _quietly("onnxscript", "onnx_ir"):
        made = torch.onnx.export(program, dynamo=True, verbose=False)
    assert made is not None
    made.save(str(path), external_data=False)


def run_onnx(path: Path) -> Runner:
    runtime = importlib.import_module("onnxruntime")
    settings = runtime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    settings.log_severity_level = 3
    session = runtime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    names = [put.name for put in session.get_inputs()]

    def run(example: Any) -> list[Tensor]:
        tensors = [t for t in tree_leaves(example) if isinstance(t, Tensor)]
        feed = {n: t.detach().cpu().numpy() for n, t in zip(names, tensors, strict=True)}
        return [torch.from_numpy(x) for x in session.run(None, feed)]

    return run


@contextmanager
def _quietly(*loggers: str) -> Iterator[None]:
    """Without what an exporter has to say about its own optimizations."""
    levels = [(logging.getLogger(name), logging.getLogger(name).level) for name in loggers]
    try:
        for logger, _ in levels:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in levels:
            logger.setLevel(level)


@dataclass(frozen=True)
class Format:
    """How a program is written and run again, and the packages that takes."""

    write: Callable[[ExportedProgram, Path], None]
    run: Callable[[Path], Runner]
    needs: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse before anything is done if a package is missing."""
        for name in self.needs:
            try:
                importlib.import_module(name)
            except ImportError:
                raise ObcError(
                    f"ONNX needs {name}, which is missing: pip install 'obc[onnx]'"
                ) from None


FORMATS = {
    ".onnx": Format(write_onnx, run_onnx, ("onnx", "onnxscript", "onnxruntime")),
    ".pt2": Format(write_pt2, run_pt2),
}
