"""Re-initialises a model so that everything in it matters and no check passes vacuously."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from tests.examples import Example

SHIFTS = ("bias", "beta", "shift", "offset")
SCALES = ("weight", "gamma", "scale", "lambda", "alpha", "original0")


def run(model: nn.Module, example: Example) -> Any:
    """Call the model as the kind of example says: tensor, arguments or keywords."""
    if isinstance(example, dict):
        return model(**example)
    return model(*example) if isinstance(example, tuple) else model(example)


def sensitive(model: nn.Module, seed: int = 0, example: Example | None = None) -> nn.Module:
    """Draw every parameter and running statistic anew, in float64 and eval mode; returns the model.

    Weights have the spread their fan-in asks for, scales lie in [0.5, 1.5], biases and tokens are
    random: nothing is zero or one, no two channels are alike. With an example, running statistics
    are drawn around those that its activations have: without it deep residual networks grow until
    gates and softmaxes saturate. Buffers that are no statistics (masks, index tables, rotary
    frequencies) are part of the architecture, and stay.
    """
    model.double().eval()
    generator = torch.Generator().manual_seed(seed)
    drawn: set[int] = set()
    with torch.no_grad():
        for module in model.modules():
            for name, value in module.named_parameters(recurse=False):
                if id(value) not in drawn and value.is_floating_point():
                    drawn.add(id(value))
                    value.copy_(draw(module, name, value, generator))
            for name, value in module.named_buffers(recurse=False):
                if name == "running_mean":
                    value.copy_(normal(value, 0.3, generator))
                elif name == "running_var":
                    value.copy_(uniform(value, 0.5, 1.5, generator))
        if example is not None:
            settle(model, example, generator)
    return model


def draw(module: nn.Module, name: str, value: Tensor, generator: torch.Generator) -> Tensor:
    """A random value for one parameter, of the size that its place in the model asks for."""
    if isinstance(module, nn.PReLU):
        return uniform(value, 0.1, 0.5, generator)
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return normal(value, 0.7, generator)
    words = name.split("_")
    if any(word.startswith(SHIFTS) for word in words) or (value.ndim == 1 and name.startswith("b")):
        return normal(value, 0.3, generator)
    if value.numel() == max(
        value.shape, default=1
    ):  # one number per channel, whatever the broadcast
        if any(word.startswith(SCALES) for word in words):
            return uniform(value, 0.5, 1.5, generator)
        return normal(value, 0.5, generator)
    if value.shape[0] == 1 or "position" in name or "token" in name:  # learned positions
        return normal(value, 0.5, generator)
    if (
        name.startswith("weight") and "Norm" in type(module).__name__
    ):  # a scale per channel and position
        return uniform(value, 0.5, 1.5, generator)
    return normal(value, gain(module) / math.sqrt(fan_in(module, value)), generator)


def gain(module: nn.Module) -> float:
    """Convolutions mostly stand before a ReLU, which halves the power; linear layers less often."""
    return math.sqrt(2) if isinstance(module, nn.modules.conv._ConvNd) else 1.2


def fan_in(module: nn.Module, value: Tensor) -> float:
    """How many inputs one output of this weight sums."""
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        positions = math.prod(module.kernel_size) / math.prod(module.stride)
        return max(1.0, value.shape[0] / module.groups * positions)
    if type(module).__name__ == "Conv1D":  # GPT-2's linear layer, stored the other way round
        return value.shape[0]
    if isinstance(module, nn.Linear | nn.modules.conv._ConvNd | nn.RNNBase | nn.RNNCellBase):
        return value[0].numel()
    # A bare parameter does not say which dimension is summed: the geometric mean is near enough.
    return math.sqrt(value.shape[-1] * value.shape[-2]) if value.ndim < 4 else value[0].numel()


def settle(model: nn.Module, example: Example, generator: torch.Generator) -> None:
    """Move running statistics to where the example's activations are, and a little away."""

    def adjust(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(module, _NormBase)
        mean, variance = module.running_mean, module.running_var
        if mean is None or variance is None or id(module) in seen:
            return
        seen.add(id(module))
        others = [d for d in range(inputs[0].ndim) if d != 1]
        centre = inputs[0].mean(others)
        power = inputs[0].var(others, correction=0)
        # A channel that the example hardly excites must not be blown up.
        power = power + 0.2 * power.mean() + 1e-3
        mean.copy_(centre + power.sqrt() * normal(mean, 0.3, generator))
        variance.copy_(power * uniform(variance, 0.5, 1.5, generator))

    seen: set[int] = set()
    hooks = [
        m.register_forward_pre_hook(adjust) for m in model.modules() if isinstance(m, _NormBase)
    ]
    try:
        if hooks:
            run(model, example)
    finally:
        for hook in hooks:
            hook.remove()


def normal(like: Tensor, spread: float, generator: torch.Generator) -> Tensor:
    """Normal values of the given spread in the shape of another tensor."""
    return torch.randn(like.shape, generator=generator, dtype=like.dtype) * spread


def uniform(like: Tensor, low: float, high: float, generator: torch.Generator) -> Tensor:
    """Uniform values between two bounds in the shape of another tensor."""
    return low + (high - low) * torch.rand(like.shape, generator=generator, dtype=like.dtype)


def tensors(output: Any) -> list[Tensor]:
    """All floating tensors within whatever a model returned, in order."""
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, Mapping):
        return [t for value in output.values() for t in tensors(value)]
    if isinstance(output, list | tuple):
        return [t for value in output for t in tensors(value)]
    return []


def mapped(function: Callable[[Tensor], Tensor], example: Example) -> Any:
    """The example with a function applied to each tensor in it."""
    if isinstance(example, Tensor):
        return function(example)
    if isinstance(example, dict):
        return {key: mapped(function, value) for key, value in example.items()}
    if isinstance(example, tuple | list):
        return type(example)(mapped(function, value) for value in example)
    return example
