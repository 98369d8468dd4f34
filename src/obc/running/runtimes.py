"""Where models run: eager or compiled PyTorch, ONNX Runtime, OpenVINO, each ready to be timed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from obc.errors import ObcError, closest
from obc.running import onnx
from obc.running.forward import arguments, evaluating
from obc.running.randomness import kept
from obc.running.timing import device_of, race

Run = Callable[[], object]
"""One pass of an example, with nothing else to do."""

_WARM_UP = 3


def eager(model: nn.Module, example: Any) -> Run:
    args, kwargs = arguments(example)
    return lambda: model(*args, **kwargs)


def compiled(model: nn.Module, example: Any) -> Run:
    args, kwargs = arguments(example)
    program = torch.compile(model)
    return lambda: program(*args, **kwargs)


def in_onnxruntime(model: nn.Module, example: Any) -> Run:
    return onnx_run(onnx.of_model(model, example), example)


def onnx_run(proto: Any, example: Any) -> Run:
    """One pass of an `onnx.ModelProto` in ONNX Runtime."""
    session = onnx.session_of(proto.SerializeToString())
    feed = onnx.feed(session, example)
    return lambda: session.run(None, feed)


def in_openvino(model: nn.Module, example: Any) -> Run:
    return openvino_run(onnx.of_model(model, example), example)


def openvino_run(proto: Any, example: Any) -> Run:
    """One pass of an `onnx.ModelProto` in OpenVINO."""
    core = importlib.import_module("openvino").Core()
    core.set_property("CPU", {"INFERENCE_NUM_THREADS": torch.get_num_threads()})
    request = core.compile_model(
        core.read_model(proto.SerializeToString()), "CPU"
    ).create_infer_request()
    tensors = [t.numpy() for t in tree_leaves(example) if isinstance(t, Tensor)]
    return lambda: request.infer(tensors)


RUNTIMES: dict[str, Callable[[nn.Module, Any], Run]] = {
    "torch": eager,
    "compile": compiled,
    "onnxruntime": in_onnxruntime,
    "openvino": in_openvino,
}
_NEEDS = {"onnxruntime": onnx.PACKAGES, "openvino": ("onnx", "onnxscript", "openvino")}


def check(runtime: str) -> None:
    """Refuse a runtime that is not known or not installed.

    >>> check("onnx")
    Traceback (most recent call last):
    obc.errors.ObcError: no runtime named 'onnx'; there are torch, compile, onnxruntime, openvino...
    """
    if not isinstance(runtime, str) or runtime not in RUNTIMES:
        known = ", ".join(RUNTIMES)
        raise ObcError(
            f"no runtime named '{runtime}'{closest(str(runtime), RUNTIMES)}; there are {known}",
            section="names",
        )
    for package in _NEEDS.get(runtime, ()):
        try:
            importlib.import_module(package)
        except ImportError:
            raise ObcError(
                f"{runtime} needs {package}, which is missing", section="what-is-not-installed"
            ) from None


@torch.no_grad()
def ready(model: nn.Module, example: Any, runtime: str) -> Run:
    """A model in eval mode, exported or compiled if need be, and warm."""
    try:
        run = RUNTIMES[runtime](model, example)
        for _ in range(_WARM_UP):
            run()
    except Exception as error:
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise ObcError(f"the model does not run in {runtime}: {reason}") from error
    return run


@torch.no_grad()
def seconds(
    models: Sequence[nn.Module], example: Any, runtime: str, *, turns: int = 20, least: float = 0.2
) -> list[float]:
    """Each model's fastest run of many in a runtime, taking turns, after a warm-up.

    Args:
        models: What is timed, in eval mode.
        example: What the models run on.
        runtime: "torch", "compile", "onnxruntime" or "openvino".
        turns: How many there are at least.
        least: How many seconds the first model is measured at least.

    >>> small, large = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 9999), nn.Linear(9999, 99))
    >>> quick, slow = seconds([small, large], torch.zeros(1, 4), "torch", turns=3, least=0)
    >>> quick < slow
    True
    """
    check(runtime)
    with ExitStack() as modes:
        modes.enter_context(kept())
        for model in models:
            modes.enter_context(evaluating(model))
        runs = [ready(model, example, runtime) for model in models]
        times = race(runs, turns=turns, seconds=least, device=device_of(models[0]))
    return [min(taken) for taken in times]
