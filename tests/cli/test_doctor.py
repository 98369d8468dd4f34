"""`obc doctor`: what works is shown with its version, what does not with the line that helps."""

from __future__ import annotations

import importlib
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest
import torch

from obc.cli import doctor
from obc.tuning.recipe import tomllib
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


def test_each_extra_is_listed() -> None:
    """What the extras of users install, under the names that are imported."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = {(e, p) for e in extras for p in extras[e] if e not in ("docs", "dev")}
    listed = {
        (remedy.partition("[")[2].rstrip("]'"), doctor.DISTRIBUTIONS.get(name, name).lower())
        for name, _, remedy in doctor.PARTS
    }
    named = {package for _, package in listed}
    assert {package for _, package in wanted} == named
    assert listed <= wanted


def test_a_part_that_does_not_import(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> ModuleType:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(doctor, "PARTS", JUST_SKLEARN)
    monkeypatch.setattr(importlib, "import_module", broken)
    (part,) = done("doctor")["parts"]
    assert part["version"] is not None and "nms does not exist" in part["problem"]
    assert part["remedy"] == doctor.SAME_INDEX
