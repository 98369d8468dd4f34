"""Every command on real images, through the application."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import obc
from obc.cli.inputs import model_of, planned
from obc.cli.measure import measured
from obc.equivalent.attach import is_equivalent
from obc.reporting.record import Record
from obc.surgery.record import applied
from tests.cli.running import done, run


def test_prune_meets_its_target_and_saves_what_it_says(dense: Path, half: Path) -> None:
    task = obc.tasks.resolve("digits")
    example = task.example()
    model = model_of(str(half))
    assert is_equivalent(model)  # for `obc tune`
    whole = obc.cost(model_of(str(dense)), example)
    found = measured("half", model, task, example)
    assert 0.5 >= found.macs / whole.macs > 0.49
    record = json.loads((half / "record.json").read_text())
    assert record["latency"][-1]["macs"] == found.macs
    assert record["latency"][-1]["quality"] == pytest.approx(found.evaluation.top1)
    assert "report.html" in {f.name for f in half.iterdir()}


def test_the_same_prune_again_gives_the_same_weights(dense: Path, tmp_path: Path) -> None:
    arguments = ("prune", dense, "--data", "digits", "--target", "macs=75%", "--rows", 2)
    for name in ("a", "b", "a"):  # the third time over what is there
        done(*arguments, "--step", 0.1, "--out", tmp_path / name)
    a, b = (model_of(str(tmp_path / name)).state_dict() for name in "ab")
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_prune_recalibrates_unless_told_not_to(dense: Path, tmp_path: Path) -> None:
    arguments = ("prune", dense, "--data", "digits", "--target", "macs=2x", "--rows", 2)
    fitted = done(*arguments, "--step", 0.1, "--recalibrate", 256, "--out", tmp_path / "fitted")
    plain = done(*arguments, "--step", 0.1, "--no-recalibrate", "--out", tmp_path / "plain")
    assert fitted["cut"]["loss"] == pytest.approx(plain["cut"]["loss"])
    assert fitted["recalibrated"]["loss"] < fitted["cut"]["loss"]
    assert fitted["recalibrated"]["macs"] == plain["cut"]["macs"]
    assert "recalibrated" not in plain
    record = Record.load(tmp_path / "fitted")
    assert [row.name for row in record.latency] == ["before", "cut", "recalibrated"]
    (account,) = record.recalibration
    assert account.samples >= 256 and account.after < account.before
    assert any(fit.kept and fit.after < fit.before for fit in account.fits)
    assert not Record.load(tmp_path / "plain").recalibration


def test_random_weights_are_told_of(dense: Path) -> None:
    fresh = run("eval", "resnet20,width=4", "--data", "digits")
    assert "note: resnet20,width=4 has random weights" in fresh.stderr
    assert "random weights" not in run("eval", dense, "--data", "digits").stderr


def test_the_paper_is_a_flag_away(dense: Path, tmp_path: Path) -> None:
    arguments = ("prune", dense, "--data", "digits", "--target", "macs=2x", "--rows", 2)
    done(*arguments, "--step", 0.1, "--paper", "--out", tmp_path / "paper")
    done(*arguments, "--step", 0.1, "--out", tmp_path / "default")
    paper, default = (
        applied(model_of(str(tmp_path / name)))[-1].settings for name in ("paper", "default")
    )
    assert (paper["rank"], paper["criterion.block"]) == ("score", "member")
    assert (default["rank"], default["criterion.block"]) == ("score/cost", "group")
    assert default["criterion.expected"] is True and "criterion.expected" not in paper
    assert not Record.load(tmp_path / "paper").recalibration


def test_what_images_are_planned_with() -> None:
    task = obc.tasks.Classification([], [])
    quick, paper = planned(task, "jacobian", {}), planned(task, "jacobian", {}, paper=True)
    assert (quick["rows"], quick["step"], quick["expected"]) == (10, 0.02, True)
    assert (paper["rows"], paper["step"]) == (50, 0.0025) and "expected" not in paper
    assert planned(task, "taylor", {"rows": None}) == paper
    assert planned(task, "jacobian", {}, checkpoint=True) == paper


@pytest.mark.parametrize("kind", [obc.tasks.Language, obc.tasks.Detection])
def test_the_papers_rows_and_steps_hold_for_any_task(kind: type[obc.tasks.Task]) -> None:
    task = object.__new__(kind)  # which data it has does not matter
    usual, paper = planned(task, "jacobian", {}), planned(task, "jacobian", {}, paper=True)
    assert (paper["rows"], paper["step"]) == (50, 0.0025) != (usual["rows"], usual["step"])
    assert not {"pace", "block", "expected"} & set(paper)
    assert paper["batch_size"] == usual["batch_size"]


@pytest.mark.slow
def test_c_and_d_start_where_recalibration_ends(dense: Path, tmp_path: Path) -> None:
    arguments = ("prune", dense, "--data", "digits", "--target", "macs=2x", "--rows", 2)
    plain = done(*arguments, "--step", 0.1, "--out", tmp_path / "plain")
    kept = done(*arguments, "--step", 0.1, "--equivalent", "--out", tmp_path / "kept")
    assert is_equivalent(model_of(str(tmp_path / "kept")))
    assert kept["recalibrated"]["loss"] == pytest.approx(plain["recalibrated"]["loss"], rel=1e-4)
    judged = done("eval", tmp_path / "kept", "--data", "digits")
    assert judged["loss"] == pytest.approx(plain["recalibrated"]["loss"], rel=1e-4)


def test_tune_merges_and_eval_agrees(half: Path, recipes: Path) -> None:
    tuned = done("tune", half, "--recipe", recipes / "short.toml")
    assert not is_equivalent(model_of(str(half / "tuned")))
    judged = done("eval", half / "tuned", "--data", "digits")
    assert judged["top1"] == tuned["tuned"]["top1"]
    assert judged["macs"] == tuned["tuned"]["macs"] == tuned["before"]["macs"]
    again = done("tune", half, "--recipe", recipes / "short.toml")  # it is done already
    assert again["tuned"]["loss"] == tuned["tuned"]["loss"]


def test_run_does_all_of_a_recipe(dense: Path, recipes: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    found = done("run", recipes / "whole.toml", "--model", dense, "--out", out)
    assert found["tuned (EP)"]["macs"] <= found["before"]["macs"] / 2
    assert found["sparse"]["loss"] != found["before"]["loss"]
    assert {"sparse", "planning", "tuning", "report.html"} <= {f.name for f in out.iterdir()}
    judged = done("eval", out, "--data", "digits")
    assert judged["loss"] == pytest.approx(found["tuned (EP)"]["loss"])
    (out / "model.safetensors").unlink()  # as if it had been stopped just before the end
    again = done("run", recipes / "whole.toml", "--model", dense, "--out", out)
    assert again["tuned (EP)"]["loss"] == found["tuned (EP)"]["loss"]


@pytest.mark.slow
def test_a_recipe_may_recalibrate(dense: Path, recipes: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recalibrated.toml"
    whole = (recipes / "whole.toml").read_text()
    recipe.write_text(whole.replace("rows = 2", "rows = 2\nrecalibrate = 256"))
    found = done("run", recipe, "--model", dense, "--out", tmp_path / "run")
    assert found["recalibrated"]["loss"] < found["cut"]["loss"]
    names = [row.name for row in Record.load(tmp_path / "run").latency]
    assert names == ["before", "sparse", "cut", "recalibrated", "tuned (EP)"]


def test_export_of_a_model_that_is_not_merged(half: Path, tmp_path: Path) -> None:
    found = done("export", half, tmp_path / "model.pt2", "--original")
    assert found["relative error"] < 1e-4
    assert found["bytes"] < found["original bytes"]


def test_report_is_drawn_again(half: Path) -> None:
    (half / "report.html").unlink()
    found = done("report", half)
    assert Path(found["report"]).read_text(encoding="utf-8").startswith("<!")


def test_show_names_sites_frozen_layers_and_costs() -> None:
    found = done("show", "resnet20,in_channels=1", "--input", "1x1x8x8")
    assert found["macs"] == 2_532_992
    assert sum(site["channels"] for site in found["sites"]) == 448
    assert found["frozen"][0]["layer"] == "fc"
    first = found["sites"][0]
    assert first["written by"][:2] == ["conv1", "layer1.0.conv2"]
    text = run("show", "resnet20,in_channels=1", "--input", "1x1x8x8").stdout
    assert "12 sites, 448 channels" in text and "model output" in text


def test_show_of_a_pruned_model_shows_its_plan(half: Path) -> None:
    assert "Plan for macs=2x" in run("show", half).stdout


def test_show_tells_of_what_is_down_to_one_channel(tmp_path: Path) -> None:
    model = obc.models.resnet20(in_channels=1)
    example = torch.rand(1, 1, 8, 8)
    plan = obc.Plan.from_kept(obc.trace(model, example), {"layer1.0.conv1": [3]})
    obc.save(obc.apply(model, plan), tmp_path / "thin", reference="resnet20,in_channels=1")
    assert done("show", tmp_path / "thin")["single"] == ["layer1.0.conv1"]
    assert (
        "Down to one channel, so no longer sites: layer1.0.conv1"
        in run("show", tmp_path / "thin").stdout
    )


def test_show_draws_a_page(half: Path, tmp_path: Path) -> None:
    done("show", half, "--html", tmp_path / "half.html")
    words = (tmp_path / "half.html").read_text(encoding="utf-8")
    assert " kept" in words and "→" in words
    net = obc.models.resnet20(in_channels=1)
    sites = obc.trace(net, torch.zeros(1, 1, 8, 8))
    obc.Plan.from_kept(sites, {"conv1": [0, 2, 5]}).save(tmp_path / "plan.json")
    shape = ("resnet20,in_channels=1", "--input", "1x1x8x8", "--plan", tmp_path / "plan.json")
    done("show", *shape, "--html", tmp_path / "planned.html")
    assert "16 → 3" in (tmp_path / "planned.html").read_text(encoding="utf-8")
    assert run("show", *shape).exit_code == 1  # a plan without a page is an error
    kept = run("show", "resnet20", "--plan", half / "plan.json", "--html", tmp_path / "no.html")
    assert "belongs to a saved model; obc show" in kept.stderr


def test_weights_are_loaded_from_a_file(dense: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file(model_of(str(dense)).state_dict(), tmp_path / "w.safetensors")
    saved = done("eval", dense, "--data", "digits")
    name = "resnet20,width=4"
    found = done("eval", name, "--data", "digits", "--weights", tmp_path / "w.safetensors")
    assert found["loss"] == saved["loss"]
    assert done("eval", name, "--data", "digits")["loss"] != saved["loss"]


def test_quiet_says_nothing(dense: Path) -> None:
    found = run("eval", dense, "--data", "digits", "--quiet")
    assert (found.exit_code, found.output) == (0, "")


def test_every_command_has_an_example_in_its_help() -> None:
    listed = run("--help").stdout
    for name in (
        *("demo", "show", "prune", "tune", "run", "compare", "eval", "export", "report"),
        *("data", "doctor"),
    ):
        assert name in listed
        text = run(name, "--help").stdout
        assert f"Example: obc {name}" in " ".join(text.split())
        assert all(option in text for option in ("--json", "--quiet", "--debug"))
