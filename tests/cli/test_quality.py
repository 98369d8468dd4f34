"""Quality targets, the curve and the estimate on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import obc
from obc.cli.inputs import model_of
from obc.planning.judgement import judge
from obc.planning.quality import Quality
from obc.surgery.record import applied
from tests.cli.running import done, run


def test_what_is_promised_is_what_is_saved(dense: Path, tmp_path: Path) -> None:
    arguments = ("prune", dense, "--data", "digits", "--target", "accuracy-20%", "--rows", 2)
    few = ("--step", 0.2, "--recalibrate", 128, "--seed", 3)
    done(*arguments, *few, "--out", tmp_path / "kept")
    task = obc.tasks.resolve("digits")
    models = model_of(str(dense)), model_of(str(tmp_path / "kept"))
    evaluations = [task.evaluate(model, "promise") for model in models]
    judged = judge(Quality.parse("accuracy-20%").of(task.metrics), task, *evaluations)
    plan = applied(models[1])[-1]
    assert plan.promise is not None
    assert (plan.promise.estimate, plan.promise.bound) == (judged.estimate, judged.bound)
    assert judged.bound <= 20
    lines = (tmp_path / "kept" / "frontier.csv").read_text().splitlines()
    assert len(lines) == len(plan.places) + 1
    page = (tmp_path / "kept" / "report.html").read_text()
    assert "Quality against cost" in page and 'data-figure="frontier"' in page


def test_the_curve_is_drawn_and_any_point_can_be_taken(dense: Path, tmp_path: Path) -> None:
    told = done(
        "frontier", dense, "--data", "digits", "--until", "macs=2x", "--places", 2,
        "--rows", 2, "--step", 0.1, "--out", tmp_path / "curve",
    )  # fmt: skip
    assert [place["split"] for place in told["places"]] == ["test"] * 3
    assert told["places"][0]["loss"] == 0
    plan = obc.Plan.load(tmp_path / "curve" / "plan.json")
    assert plan.after is not None and plan.before is not None
    assert plan.after.macs * 2 <= plan.before.macs
    assert len(plan.at("macs=1.2x").history) < len(plan.history)
    record = json.loads((tmp_path / "curve" / "record.json").read_text())
    assert record["frontier"][0]["macs"] == 1
    assert "Quality against cost" in (tmp_path / "curve" / "report.html").read_text()


def test_the_estimate_writes_nothing(dense: Path, tmp_path: Path) -> None:
    arguments = ("prune", dense, "--data", "digits", "--out", tmp_path / "x", "--estimate")
    told = done(*arguments, "--target", "macs=2x", "--rows", 3, "--step", 0.1)
    assert told["steps"] >= 2 and told["rows"] == 3 * told["steps"] and told["seconds"] > 0
    search = done(*arguments, "--target", "accuracy-6%", "--rows", 3, "--step", 0.1)
    assert search["steps"] == told["steps"] and search["rows"] == told["rows"]
    assert search["until"] == "macs=2x" and search["places"] >= 2 and search["place"] > 0
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("target", "more", "error"),
    [
        ("accuracy-1%", [], "409 would do"),
        ("acuracy-1%", [], "there are top1, top5, loss, accuracy"),
        ("accuracy-6%", ["--equivalent"], "judged without tuning"),
        ("acuracy-6%", ["--estimate"], "there are top1, top5, loss, accuracy"),
        ("accuracy-6%", ["--minimise", "joules"], "no target named 'joules'"),
    ],
)
def test_errors_say_what_would_do(
    dense: Path, tmp_path: Path, target: str, more: list[str], error: str
) -> None:
    result = run("prune", dense, "--data", "digits", "--target", target, *more,
                 "--rows", 2, "--out", tmp_path / "x")  # fmt: skip
    assert result.exit_code == 1
    assert error in " ".join(result.output.split())
