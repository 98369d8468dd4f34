"""The tables of what random networks are made of, and the choices that go into a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from tests.nets.wrap import Wrap


class Pick:
    """Choices, made one by one; the first of each is the simplest."""

    def __init__(self, choose: Callable[[list[Any]], Any]) -> None:
        self.choose = choose

    def one(self, options: Iterable[Any]) -> Any:
        return self.choose(list(options))

    def flag(self) -> bool:
        return bool(self.one((False, True)))

    def width(self) -> int:
        return int(self.one((4, 2, 3, 6, 8)))


def do(name: str, function: Callable[..., Any], **layers: Any) -> Wrap:
    """A step without a class of its own."""
    return Wrap(function, name, **layers)


# Each kind makes a layer from choices and the tensor's example; None where it does not apply.
Made = nn.Module | None
UNARY: dict[str, tuple[tuple[int, ...], Callable[[Pick, Tensor], Made]]] = {}
BINARY: dict[str, tuple[Callable[[Tensor, Tensor], bool], Callable[..., Tensor]]] = {}
MIXING: set[str] = set()


def unary(*ndims: int, mixes: bool = False) -> Callable[..., Any]:
    """Register a kind of step on one tensor of so many dimensions."""

    def register(make: Callable[[Pick, Tensor], Made]) -> Callable[[Pick, Tensor], Made]:
        UNARY[make.__name__] = (ndims, make)
        if mixes:
            MIXING.add(make.__name__)
        return make

    return register


def axis(x: Tensor) -> int:
    """Where the channels are: second, or last among tokens."""
    return 2 if x.ndim == 3 else 1


def channels(x: Tensor) -> int:
    return x.shape[axis(x)]


def divisors(n: int) -> list[int]:
    return [d for d in range(2, n + 1) if n % d == 0]
