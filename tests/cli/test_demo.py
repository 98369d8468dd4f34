"""`obc demo`, whole and again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import shell


@pytest.mark.slow
def test_the_demo_does_the_main_job(tmp_path: Path) -> None:
    found = shell("demo", "--json", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout)
    models = told["models"]
    whole = models["whole"]
    assert whole["top1"] > 95
    for name, factor in (("2x", 2), ("4x", 4)):
        for way in ("naive", "EP"):
            own = models[f"{name}, {way}"]
            assert factor <= whole["macs"] / own["macs"] <= factor * 1.006
            assert own["top1"] > models[f"{name}, not tuned"]["top1"]
            assert own["bytes"] < whole["bytes"]
        assert models[f"{name}, recalibrated"]["top1"] > models[f"{name}, not tuned"]["top1"]
    assert any("loaded again" in check for check in told["checks"])
    assert told["CPU seconds"] < 240
    page = tmp_path / "runs" / "demo" / "report.html"
    assert page.stat().st_size > 50_000

    again = shell("demo", "--json", cwd=tmp_path)  # everything is there already
    assert again.returncode == 0, again.stderr
    for name, own in json.loads(again.stdout)["models"].items():
        assert own["top1"] == models[name]["top1"]
        assert own["loss"] == models[name]["loss"]
