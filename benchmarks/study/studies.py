"""What is compared without tuning: networks, variants of the ranking, budgets and seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

JC = "JC, as printed"
GROUP = "group JC ÷ cost"
JOINT = "redundancy ÷ cost"
BY_COST: dict[str, Any] = {"block": "group", "rank": "score/cost"}

# The paper's apple-to-apple comparison. A cut by weights alone is the same for each seed, but not
# the images that it is recalibrated with.
CRITERIA: dict[str, dict[str, Any]] = {
    GROUP: BY_COST,
    JOINT: {"criterion": "redundancy", "rank": "score/cost"},
    JC: {},
    "taylor": {"criterion": "taylor"},
    "hessian": {"criterion": "hessian"},
    **{name: {"criterion": name} for name in ("random", "l1", "l2", "bn_scale", "fpgm", "whc")},
}
# Each differs in one thing from JC as printed with the protocol's rows and step.
ABLATIONS: dict[str, dict[str, Any]] = {
    "γβ diagonal": {"diagonal_norm": True},
    "local": {"scope": "local"},
    "isomorphic": {"scope": "isomorphic"},
    "mean": {"aggregate": "mean"},
    "max": {"aggregate": "max"},
    "sum, normalised": {"normalize": "mean"},
    "mean, normalised": {"aggregate": "mean", "normalize": "mean"},
    "max, normalised": {"aggregate": "max", "normalize": "mean"},
    "p = 10%": {"step": 0.1},
    "p = 2.5%": {"step": 0.025},
    "N = 5": {"rows": 5},
    "N = 20": {"rows": 20},
    "N = 50": {"rows": 50},
    "N = 500": {"rows": 500},
    "group JC": {"block": "group"},
    "JC ÷ cost": {"rank": "score/cost"},
}


@dataclass(frozen=True)
class Study:
    """Variants of one network, each planned once to all speed-ups.

    `samples` are the images to recalibrate with, at the speed-ups `refit`; `rows` (N), `batch` and
    `step` (p) are those of the planning, unless a variant has its own; `test` counts the images
    that it is judged by.
    """

    network: str
    variants: Mapping[str, Mapping[str, Any]]
    speedups: tuple[float, ...] = (1.5, 2.0, 3.0, 4.0)
    refit: tuple[float, ...] = (2.0, 4.0)
    seeds: int = 3
    rows: int = 10
    batch: int = 32
    step: float = 0.05
    samples: int = 512
    test: int = 1000

    def keys(self, seeds: int | None = None) -> list[tuple[str, int]]:
        """All cells, seed by seed, so that a run that is cut short has all variants."""
        count = self.seeds if seeds is None else seeds
        return [(name, seed) for seed in range(count) for name in self.variants]


# Half of the 500 images of ImageNet calibrate, the other half judge.
FEW_IMAGES: dict[str, Any] = {
    **{"speedups": (1.15, 1.3), "refit": (1.3,)},
    **{"seeds": 1, "batch": 8, "samples": 250, "test": 250},
}
LAST = "features.18.0"  # of MobileNetV2: the paper does not prune its last convolution

STUDIES = {
    "resnet20": Study("resnet20_padded", CRITERIA),
    "ablations": Study("resnet20_padded", ABLATIONS, (2.0, 4.0), (4.0,), seeds=1),
    "resnet56": Study("resnet56_padded", CRITERIA),
    "vgg16": Study("vgg16_quarter", CRITERIA, (2.0, 3.0, 6.0, 9.0), (3.0, 9.0), seeds=1),
    "vit": Study("vit_cifar", {n: v for n, v in CRITERIA.items() if n != "bn_scale"}, seeds=1),
    "mobilenet": Study("mobilenet", CRITERIA, **FEW_IMAGES),
    "mobilenet_last": Study(
        "mobilenet", {n: {**v, "ignore": [LAST]} for n, v in CRITERIA.items()}, **FEW_IMAGES
    ),
    "fashion": Study(
        "fashion", {name: CRITERIA[name] for name in (GROUP, JOINT, JC, "l2")}, test=2000
    ),
}
