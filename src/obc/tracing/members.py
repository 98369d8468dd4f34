"""Members: one layer's share of a site, by the positions that each channel owns in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, init=False)
class Member:
    """One layer's share of a site.

    `index[c]` are the positions along `dim` that channel `c` owns: one for a filter, 64 for an
    attention head, 49 for a channel that was flattened at 7 x 7.

    Experts that are modules of a list count as one layer, the list: `keys` are their names in it,
    `param` is `"*.up.weight"`, and `dim` is a dimension of their weights stacked, so that dimension
    0 runs over whole experts.
    """

    layer: str
    param: str
    dim: int
    role: str
    index: Tensor = field(repr=False, compare=False)
    keys: tuple[str, ...] = ()

    def __init__(
        self,
        layer: str,
        param: str,
        dim: int,
        role: str,
        index: Tensor,
        keys: tuple[str, ...] = (),
    ) -> None:
        # The one that a frozen dataclass writes takes three times as long, and there are thousands.
        self.__dict__.update(layer=layer, param=param, dim=dim, role=role, index=index, keys=keys)

    @property
    def name(self) -> str:
        """The parameter's name in the model; of stacked ones, what their names have in common."""
        return f"{self.layer}.{self.param}" if self.layer else self.param

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all parameters that are meant: one, or one for each expert.

        >>> Member("moe", "*.up.bias", 1, "out", torch.arange(8).view(8, 1), ("0", "1")).names
        ('moe.0.up.bias', 'moe.1.up.bias')
        """
        if not self.keys:
            return (self.name,)
        prefix, rest = f"{self.layer}." if self.layer else "", self.param.removeprefix("*")
        return tuple([f"{prefix}{key}{rest}" for key in self.keys])

    @property
    def places(self) -> list[tuple[str, int]]:
        """The dimensions of parameters that are sliced with this; none where whole experts go."""
        if not self.keys:
            return [(self.name, self.dim)]
        return [(name, self.dim - 1) for name in self.names] if self.dim else []

    def each(self) -> list[Member]:
        """A member for each parameter that is sliced with this."""
        if not self.keys:
            return [self]
        split = [(*name.rpartition("."), dim) for name, dim in self.places]
        return [Member(path, key, dim, self.role, self.index) for path, _, key, dim in split]

    def of(self, tensors: Mapping[str, Tensor], at: int = 0) -> Tensor:
        """What is meant of tensors by name; those of experts stacked along `at`."""
        if not self.keys:
            return tensors[self.name]
        return torch.stack([tensors[name] for name in self.names], at)
