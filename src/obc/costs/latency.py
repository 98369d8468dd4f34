"""How long a model takes for its example on this machine."""

from __future__ import annotations

import statistics
from typing import Any

from torch import nn

from obc.running.processes import Group
from obc.running.timing import race_models


def seconds(model: nn.Module, example: Any) -> float:
    """The median time of one run in eval mode, after a warm-up; the first process's for all."""
    return Group().agreed(statistics.median(race_models([model], example)[0]))
