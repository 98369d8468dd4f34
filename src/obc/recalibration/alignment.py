"""Which outputs and inputs of an original operator the pruned one has kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from obc.recalibration.forms import Form
from obc.recalibration.origins import Origins
from obc.recalibration.recording import Reader


@dataclass(frozen=True)
class Alignment:
    """Where the matrix of a pruned weight, [groups, outputs, inputs], was in the original's.

    `columns` are the channels of the original's output, all groups of them in a row, that the
    pruned operator puts out; `groups` has an entry and `inputs` a row for each group.
    """

    columns: Tensor
    groups: Tensor
    inputs: Tensor

    def rows(self, form: Form, index: Tensor) -> Tensor:
        """What the original reads at these positions, of the kept inputs."""
        u = form.rows(index)[self.groups.to(index.device)]
        kept = self.inputs.to(index.device).unsqueeze(1)
        return u.gather(-1, kept.expand(-1, u.shape[1], -1))


def align(original: Reader, pruned: Reader, origins: Origins) -> Alignment | None:
    """Match a pruned operator with the original's; None where they are not of one form."""
    if type(original.form) is not type(pruned.form):
        return None
    at, (_, height, width) = _places(original, pruned, origins)
    if bool((at < 0).any()):
        return None
    group = at[:, 0, 0] // (height * width)
    columns = at[:, :, 0] // width
    inputs = at[:, 0] % width
    if not torch.equal(at, columns.unsqueeze(2) * width + inputs.unsqueeze(1)):
        return None
    if not torch.equal(columns // height, group.unsqueeze(1).expand_as(columns)):
        return None
    return Alignment(columns.reshape(-1), group, inputs)


def intact(original: Reader, pruned: Reader, alignment: Alignment) -> bool:
    """Whether a pruned operator computes its outputs just as the original does, from all inputs."""
    whole, part = (
        reader.form.matrix(reader.weight.view).flatten(0, 1) for reader in (original, pruned)
    )
    kept = alignment.columns.to(whole.device)
    if whole.shape[1:] != part.shape[1:] or not torch.equal(whole[kept], part):
        return False
    if original.bias is None or pruned.bias is None:
        return original.bias is pruned.bias
    return torch.equal(original.bias.view[kept], pruned.bias.view)


def constants_of(pruned: Mapping[str, Tensor], original: Mapping[str, Tensor]) -> dict[str, str]:
    """Weights that ask for no gradient where others do and that lost nothing, as a note on each.

    The bins of a distribution of distances, a blur: fitted, they would stand for other numbers.
    """
    weights = {n: t for n, t in pruned.items() if isinstance(t, nn.Parameter)}
    if not any(weight.requires_grad for weight in weights.values()):
        return {}  # a model that is not to be trained says nothing about single weights
    return {
        name: "a constant of the model, nothing was cut from it"
        for name, weight in weights.items()
        if not weight.requires_grad and name in original and original[name].shape == weight.shape
    }


def _places(original: Reader, pruned: Reader, origins: Origins) -> tuple[Tensor, torch.Size]:
    """Where each element of the pruned matrix was in the original's, and the original's shape."""
    numbers = torch.arange(original.weight.parameter.numel())
    full = original.form.matrix(original.weight.of(numbers))
    place = torch.full_like(numbers, -1)
    place[full.reshape(-1)] = torch.arange(full.numel())
    kept = pruned.form.matrix(pruned.weight.of(origins.ids(pruned.key[0]).reshape(-1)))
    return place[kept], full.shape
