"""The network as printed in the paper, to compare with: C and D as 1×1 layers around full ones.

`obc.apply(model, plan, equivalent=True)` trains the same network at the width of the pruned one.
Here too is the variant of the paper's appendix, Conv–BN–C–NewBN, which has no folded form.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from obc.equivalent.apply import Whole
from obc.equivalent.attach import like
from obc.equivalent.factors import Factors, Mix
from obc.equivalent.layout import Layout, lay_out
from obc.errors import ObcError
from obc.plans.plan import Plan
from obc.running.difference import difference
from obc.running.forward import forward, outputs
from obc.running.snapshot import unchanged
from obc.surgery import slicing

_CONVOLUTIONS = {3: functional.conv1d, 4: functional.conv2d, 5: functional.conv3d}


def compress(mix: Mix, x: Tensor, dim: int) -> Tensor:
    """C behind a layer: all channels of its output to the kept ones."""
    if mix.groups > 1:
        grouped = x.unflatten(dim, (mix.groups, -1)).movedim(dim, 0)
        return mix.along(grouped, dim + 1).movedim(0, dim).flatten(dim, dim + 1)
    if mix.plain and dim == 1 and x.ndim in _CONVOLUTIONS:
        return _convolved(x, mix.matrices[0][0])
    return mix.along(x, dim)


def decompress(mix: Mix, x: Tensor, dim: int) -> Tensor:
    """D before a layer: the kept channels to all that it reads."""
    if mix.groups > 1:
        grouped = x.unflatten(dim, (mix.groups, -1)).movedim(dim, 0)
        return _spread(mix, grouped, dim + 1).movedim(0, dim).flatten(dim, dim + 1)
    if mix.plain and dim == 1 and x.ndim in _CONVOLUTIONS:
        return _convolved(x, mix.matrices[0][0].t())
    return _spread(mix, x, dim)


def _convolved(x: Tensor, matrix: Tensor) -> Tensor:
    kernel = matrix.reshape(*matrix.shape, *(1 for _ in x.shape[2:]))
    return _CONVOLUTIONS[x.ndim](x, kernel)


def _spread(mix: Mix, x: Tensor, dim: int) -> Tensor:
    """What `Mix.along` does, transposed."""
    x = x.movedim(dim, 0)
    if mix.back is not None:
        x = x.index_select(0, mix.back.argsort())
    sizes = [n * m.shape[1] // m.shape[2] for n, m in zip(mix.sizes, mix.matrices, strict=True)]
    *parts, rest = x.split([*sizes, mix.untouched])
    wide = [
        mix.block(part, matrix.transpose(1, 2), positions)
        for part, matrix, positions in zip(parts, mix.matrices, mix.positions, strict=True)
    ]
    x = torch.cat([*wide, rest])
    if mix.order is not None:
        x = x.index_select(0, mix.order.argsort())
    return x.movedim(0, dim)


class Inserted(nn.Module):
    """D, a full layer, C; `plain` is the cut layer that merging puts back in its place."""

    def __init__(self, layer: Any, plain: nn.Module, factors: Factors) -> None:
        super().__init__()
        self.layer, self.factors = layer, factors
        self.dim = 1 if isinstance(layer, nn.modules.conv._ConvNd) else -1
        self.compresses = True  # unless a norm comes first
        self._plain = (plain,)  # in a tuple, so that its parameters are none of the model's
        self.train(plain.training)

    def forward(self, x: Tensor) -> Tensor:
        for mix in self.factors.D:
            x = decompress(mix, x, self._dim(x))  # type: ignore[arg-type]
        x = self.layer(x)
        for mix in self.factors.C if self.compresses else ():
            x = compress(mix, x, self._dim(x))  # type: ignore[arg-type]
        return x

    def _dim(self, x: Tensor) -> int:
        return self.dim % x.ndim

    @property
    def plain(self) -> nn.Module:
        return self._plain[0]


class InsertedNorm(nn.Module):
    """A full batch norm, the C of the layer before it, and a new norm of the kept channels."""

    _plain: tuple[nn.Module]

    def __init__(self, norm: Any, plain: Any, before: Inserted) -> None:
        super().__init__()
        self.norm, self._plain, self._before = norm, (plain,), (before,)
        self.new = type(norm)(plain.num_features, norm.eps, norm.momentum)
        self.new.to(device=norm.weight.device, dtype=norm.weight.dtype)
        # The identity, in eval mode and, up to eps, in training: what it would measure is known.
        with torch.no_grad():
            variance = (plain.weight.square() - norm.eps).clamp_min(0)
            self.new.weight.copy_((variance + norm.eps).sqrt())
            self.new.running_var.copy_(variance)
            for shift in (self.new.bias, self.new.running_mean):
                shift.copy_(plain.bias)
        before.compresses = False
        self.train(plain.training)

    def forward(self, x: Tensor) -> Tensor:
        mix: Any = self.before.factors.C[0]
        return self.new(compress(mix, self.norm(x), 1))  # type: ignore[no-any-return]

    @property
    def plain(self) -> nn.Module:
        return self._plain[0]

    @property
    def before(self) -> Inserted:
        return self._before[0]


def apply_inserted(
    model: nn.Module, plan: Plan, example: Any = None, behind_norm: bool = False
) -> nn.Module:
    """Cut a model in place, then put C and D as layers around its full ones.

    With `behind_norm`, C comes behind the batch norm of its layer, and a new norm behind C.
    """
    whole, layers = Whole(model), {n: _twin(m) for n, m in model.named_modules()}
    done = slicing.cut(model, plan, example=example)
    with unchanged(model):
        naive = outputs(forward(model, done.example))
    layout = lay_out(model, done.sites, plan.kept, whole.groups, whole.parameters)
    norms = norms_behind(model, layout, done.example) if behind_norm else {}
    insert(model, layout, layers, norms)
    with unchanged(model):
        difference(naive, outputs(forward(model, done.example)))
    return model


def _twin(module: nn.Module) -> nn.Module:
    """The same module once more: its own attributes and dictionaries, the same tensors."""
    twin = object.__new__(type(module))
    twin.__dict__ = {k: copy.copy(v) if isinstance(v, dict) else v for k, v in vars(module).items()}
    return twin


def insert(
    model: nn.Module, layout: Layout, whole: dict[str, nn.Module], norms: dict[str, str]
) -> None:
    """Put the layers of the layout back at their full width, with C and D around them.

    `whole` are the layers as they were before the cut; `norms` the batch norms that are to come
    before C, by the layer they follow.
    """
    layers: dict[str, Inserted] = {}
    for name, factors in layout.factors.items():
        path, _, key = name.rpartition(".")
        layer: Any = model.get_submodule(path)
        known = isinstance(layer, (nn.modules.conv._ConvNd, nn.Linear, nn.Embedding))
        known = known or type(layer).__name__ == "Conv1D"
        bias = f"{path}.bias" if path else "bias"
        loose = getattr(layer, "bias", None) is not None and factors.C and bias not in layout.biases
        if key != "weight" or not known or not path or loose:
            raise ObcError(f"nothing can be inserted around '{name}' of {type(layer).__name__}")
        layers[path] = Inserted(whole[path], layer, factors)
        _replace(model, layer, layers[path])
    for path, norm in norms.items():
        plain = model.get_submodule(norm)
        _replace(model, plain, InsertedNorm(whole[norm], plain, layers[path]))


def merge_inserted(model: nn.Module) -> nn.Module:
    """Fold every inserted layer, and put the plain ones in their places, as `obc.merge` does."""
    found = [m for m in model.modules() if isinstance(m, (Inserted, InsertedNorm))]
    shifts = {id(m.before): m for m in found if isinstance(m, InsertedNorm)}
    with torch.no_grad():
        for m in found:
            if isinstance(m, Inserted):
                _fold(m, shifts.get(id(m)))
    for m in found:
        m.plain.train(m.training)
        _replace(model, m, m.plain)
    return model


def _fold(inserted: Inserted, behind: InsertedNorm | None) -> None:
    plain, layer, factors = inserted.plain, inserted.layer, inserted.factors
    plain._parameters.update(layer._parameters)
    weight, bias, shift = layer.weight, getattr(layer, "bias", None), None
    if behind is not None:
        norm: Any = behind.norm
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        dim = factors.C[0].dim
        shape = [-1 if d == dim else 1 for d in range(weight.ndim)]
        weight = weight * scale.view(shape)
        shift = norm.bias - norm.running_mean * scale
        shift = shift if bias is None else shift + scale * bias
    mix: Any
    for mix in factors.C:
        bias = bias if bias is None else mix.of_bias(bias)
        shift = shift if shift is None else mix.of_bias(shift)
    plain._parameters["weight"] = like(layer.weight, factors(weight))
    if bias is not None and factors.C:
        plain._parameters["bias"] = like(layer.bias, bias if shift is None else shift)
    if behind is not None:
        _take_norm(behind, shift if bias is None else None)


def _take_norm(behind: InsertedNorm, shift: Tensor | None) -> None:
    """The new norm's numbers; a shift that the layer before has no bias for goes into the mean."""
    new: Any = behind.new
    plain: Any = behind.plain
    for key in ("weight", "bias"):
        plain._parameters[key] = like(getattr(behind.norm, key), getattr(new, key))
    for key, value in new._buffers.items():
        plain._buffers[key] = value.clone()
    if shift is not None:
        plain.running_mean.sub_(shift)


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    for module in list(model.modules()):
        for key, child in module._modules.items():
            if child is old and module is not new:
                module._modules[key] = new


def norms_behind(model: nn.Module, layout: Layout, example: Any) -> dict[str, str]:
    """The batch norm that takes what a layer puts out, by the layer, where there is just one."""
    layers = [
        name.rpartition(".")[0]
        for name, factors in layout.factors.items()
        if [mix.groups for mix in factors.C] == [1]
    ]
    made: dict[int, str] = {}
    alive: list[Any] = []
    found: dict[str, list[str]] = {}

    def leave(path: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            made[id(output)] = path
            alive.append(output)

        return hook

    def enter(path: str) -> Any:
        def hook(module: nn.Module, inputs: Any) -> None:
            found.setdefault(made.get(id(inputs[0]), ""), []).append(path)

        return hook

    handles = [model.get_submodule(p).register_forward_hook(leave(p)) for p in layers]
    handles += [
        m.register_forward_pre_hook(enter(p))
        for p, m in model.named_modules()
        if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.affine and m.track_running_stats
    ]
    try:
        forward(model, example)
    finally:
        for handle in handles:
            handle.remove()
    seen = [norm for norms in found.values() for norm in norms]
    pairs = {
        path: norms[0]
        for path, norms in found.items()
        if path and len(norms) == 1 and seen.count(norms[0]) == 1
    }
    if not pairs:
        raise ObcError("no layer with a C is followed by a batch norm of its own")
    return pairs
