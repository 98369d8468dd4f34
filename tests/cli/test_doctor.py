"""`obc doctor`: what works is shown with its version, what does not with the line that helps."""

from __future__ import annotations

import importlib
from importlib.metadata import version
from types import ModuleType

import pytest
import torch

from obc.cli import doctor
from tests.cli.running import done, run

JUST_SKLEARN = (("sklearn", "the digits", "pip install 'obc[demo]'"),)


def test_versions_and_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ("no_such_package", "nothing", "pip install 'obc[nothing]'")
    monkeypatch.setattr(doctor, "PARTS", (*JUST_SKLEARN, missing))
    told = done("doctor")
    assert told["versions"]["torch"] == torch.__version__
    assert told["devices"][0].startswith("cpu")
    there, absent = told["parts"]
    assert there["version"] == version("scikit-learn") and not there["problem"]
    assert absent["version"] is None and absent["remedy"] == "pip install 'obc[nothing]'"
    assert "missing: pip install 'obc[nothing]'" in run("doctor").stdout


def test_a_part_that_does_not_import(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> ModuleType:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(doctor, "PARTS", JUST_SKLEARN)
    monkeypatch.setattr(importlib, "import_module", broken)
    (part,) = done("doctor")["parts"]
    assert part["version"] is not None and "nms does not exist" in part["problem"]
    assert part["remedy"] == doctor.SAME_INDEX
