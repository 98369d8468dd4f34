"""How each kind of operator moves, ties or reads channel ids: one small function per kind."""

from obc.tracing.rules import (
    contraction,
    convolution,
    indexing,
    movement,
    norms,
    pointwise,
    reduction,
)

__all__ = [
    "contraction",
    "convolution",
    "indexing",
    "movement",
    "norms",
    "pointwise",
    "reduction",
]
