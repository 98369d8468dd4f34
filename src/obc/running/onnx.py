"""Models as ONNX files, and ONNX Runtime to run them."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

from obc.errors import ObcError
from obc.running.forward import arguments
from obc.running.modules import named_tensors
from obc.running.snapshot import unchanged

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_LARGEST = 2**31 - 2**24  # bytes; what one ONNX file can hold, with room for its graph


@contextmanager
def as_it_runs(model: nn.Module) -> Iterator[None]:
    """Eval mode, without gradients and fused kernels; afterwards all is as it was."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with unchanged(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
            model.eval()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def check(packages: tuple[str, ...] = PACKAGES) -> None:
    """Refuse before anything is done if a package is missing."""
    for name in packages:
        try:
            importlib.import_module(name)
        except ImportError:
            raise ObcError(
                f"ONNX needs {name}, which is missing: pip install 'obc[onnx]'",
                section="what-is-not-installed",
            ) from None


def of_program(program: ExportedProgram) -> Any:
    """An exported program as an `onnx.ModelProto`."""
    size = sum(t.numel() * t.element_size() for t in program.state_dict.values())
    if size > _LARGEST:
        raise ObcError(f"{size} bytes of weights are more than one ONNX file holds; use .pt2")
    with _quietly("onnxscript", "onnx_ir"):
        made = torch.onnx.export(program, dynamo=True, verbose=False)
    assert made is not None
    return made


def of_model(model: nn.Module, example: Any) -> Any:
    """A model as an `onnx.ModelProto` for inputs of the example's shapes."""
    args, kwargs = arguments(example)
    try:
        with as_it_runs(model):
            program = torch.export.export(model, args, kwargs, strict=False)
        return of_program(program).model_proto
    except ObcError:
        raise
    except Exception as error:
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise ObcError(f"no ONNX graph of this model: {reason}") from error


def with_tensors(proto: Any, model: nn.Module) -> Any:
    """A copy of a graph with the tensors of a narrower copy of its model.

    Depthwise convolutions, which have a group for each channel, get as many groups as channels.
    Whether that is all that widths change in the graph has to be tried: run the copy.
    """
    helper = importlib.import_module("onnx.numpy_helper")
    tensors, copied = named_tensors(model), type(proto)()
    copied.CopyFrom(proto)
    graph, widths = copied.graph, {}
    del graph.value_info[:]  # the shapes between layers, which follow from the weights
    for held in graph.initializer:
        if held.name in tensors:
            array = tensors[held.name].detach().cpu().contiguous().numpy()
            widths[held.name] = (held.dims[0] if held.dims else 0, len(array) if array.ndim else 0)
            held.CopyFrom(helper.from_array(array, held.name))
    held_by_name = {held.name: held for held in graph.initializer}
    for node in (n for n in graph.node if n.op_type == "Conv" and n.input[1] in widths):
        before, after = widths[node.input[1]]
        for attribute in node.attribute:
            if attribute.name == "group" and attribute.i == before > 1:
                attribute.i = after
        bias = held_by_name.get(node.input[2]) if len(node.input) > 2 else None
        if bias is not None and bias.name not in tensors:  # a norm that the export has folded
            bias.CopyFrom(helper.from_array(helper.to_array(bias)[:after].copy(), bias.name))
    return copied


def freed(proto: Any, other: Any) -> Any:
    """A copy of a graph whose shapes leave open what another export of it, narrower, has different.

    A shape can leave one size open; where two differ it stays as it is.
    """
    helper, copied = importlib.import_module("onnx.numpy_helper"), type(proto)()
    copied.CopyFrom(proto)
    narrower = {held.name: helper.to_array(held) for held in other.graph.initializer}
    for held in copied.graph.initializer:
        shape, there = helper.to_array(held).copy(), narrower.get(held.name)
        if shape.ndim != 1 or shape.dtype != "int64" or there is None or len(there) != len(shape):
            continue
        if (shape != there).sum() == 1:
            shape[shape != there] = -1
            held.CopyFrom(helper.from_array(shape, held.name))
    return copied


def session_of(file: Path | bytes) -> Any:
    """ONNX Runtime's session with as many threads as torch has."""
    runtime = importlib.import_module("onnxruntime")
    settings = runtime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    settings.log_severity_level = 3
    data = file if isinstance(file, bytes) else str(file)
    return runtime.InferenceSession(data, settings, providers=["CPUExecutionProvider"])


def feed(session: Any, example: Any) -> dict[str, Any]:
    """The example's tensors under the names of a session's inputs."""
    names = [put.name for put in session.get_inputs()]
    tensors = [t for t in tree_leaves(example) if isinstance(t, Tensor)]
    return {n: t.detach().cpu().numpy() for n, t in zip(names, tensors, strict=True)}


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
