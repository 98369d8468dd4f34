"""What a channel is worth: one criterion per file, all with the same grouping and ranking."""

from obc.criteria import bn_scale, fpgm, hessian, jacobian, l1, l2, random, redundancy, taylor, whc

__all__ = [
    "bn_scale",
    "fpgm",
    "hessian",
    "jacobian",
    "l1",
    "l2",
    "random",
    "redundancy",
    "taylor",
    "whc",
]
