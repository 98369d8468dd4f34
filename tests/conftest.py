"""What every test starts from: one thread, the same seeds, and how hard properties are tried."""

import os
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, register_random, settings

torch.set_num_threads(1)

# Looking for examples in docstrings imports a file. These two give their process a second device.
collect_ignore = ["elsewhere.py", "running/second_device.py"]


class TorchRandom:
    """torch's generator as Hypothesis wants it, so that each example starts from the same seed."""

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def getstate(self) -> torch.Tensor:
        return torch.get_rng_state()

    def setstate(self, state: torch.Tensor) -> None:
        torch.set_rng_state(state)


TORCH_RANDOM = TorchRandom()  # Hypothesis keeps only a weak reference
register_random(TORCH_RANDOM)

# Drawing an example may build and run a network, which is slow for Hypothesis but right for us.
common: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("default", max_examples=25, derandomize=True, **common)
settings.register_profile("thorough", max_examples=500, print_blob=True, **common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slice", metavar="I/N", help="run every N-th test only, from the I-th")


def pytest_report_header(config: pytest.Config) -> str | None:
    chosen = config.getoption("--slice")
    return f"slice {chosen} of the tests" if chosen else None


@pytest.hookimpl(trylast=True)  # after the marks have been looked at
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = config.getoption("--slice")
    if chosen:
        number, count = map(int, chosen.split("/"))
        config.hook.pytest_deselected(
            items=[item for i, item in enumerate(items) if i % count != number % count]
        )
        items[:] = items[number % count :: count]


@pytest.fixture(autouse=True)
def seeds() -> None:
    """Every test draws the same numbers, whichever tests ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
