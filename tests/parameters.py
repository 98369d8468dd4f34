"""Cases as test parameters, marked by what they need."""

from __future__ import annotations

from typing import Any

import pytest

from tests import vision
from tests.cases import Case

PACKAGES = {"hf": "transformers", "torchvision": "torchvision", "timm": "timm"}


def parameters(*chosen: Case) -> list[Any]:
    """A parameter for each case, skipped where its package is missing."""
    return [pytest.param(c, id=c.name, marks=marks(c)) for c in chosen]


def marks(case: Case) -> list[pytest.MarkDecorator]:
    found = [
        pytest.mark.skipif(not vision.installed(package), reason=f"{package} is not installed")
        for tag, package in PACKAGES.items()
        if tag in case.tags
    ]
    if not case.tags.isdisjoint(("torchvision", "timm")):
        found.append(pytest.mark.torchvision)
    if not case.tags.isdisjoint(("slow", "long")):
        found.append(pytest.mark.slow)
    return found
