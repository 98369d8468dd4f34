"""`obc compare`: cells that are kept, tables that follow from them, ablations beside them."""

from __future__ import annotations

import csv
import json
import statistics
from pathlib import Path

import pytest

from tests.cli.running import done, run

QUICK = ("--data", "digits", "--rows", 2, "--step", 0.1, "--batch-size", 64, "--keep", "80,50")


@pytest.fixture(scope="module")
def folder(dense: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compare") / "run"
    done("compare", dense, *QUICK, "--criteria", "random,jacobian", "--seeds", 2, "--out", out)
    return out


def rows(folder: Path, group: str = "criteria") -> list[dict[str, str]]:
    with (folder / f"{group}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_files_are_there(folder: Path) -> None:
    names = {f.name for f in folder.iterdir()}
    assert {f"criteria.{kind}" for kind in ("csv", "json", "png", "svg")} <= names
    assert {"report.html", "record.json"} <= names
    assert len(list((folder / "cells").iterdir())) == 4


def test_every_criterion_meets_the_same_budgets(folder: Path) -> None:
    for row in rows(folder):
        kept = 1 - float(row["macs"])
        wanted = {"whole": 1.0, "macs=80%": 0.8, "macs=50%": 0.5}[row["target"]]
        assert wanted * 0.995 <= kept <= wanted


def test_means_and_deviations_are_those_of_the_cells(folder: Path) -> None:
    curves = json.loads((folder / "criteria.json").read_text())["curves"]
    by_name = {c["criterion"]: c for c in curves}
    for name in ("random", "jacobian"):
        own = [r for r in rows(folder) if r["variant"] == name and r["target"] == "macs=50%"]
        point = by_name[name]["points"][2]
        for what, column in (("quality", "top1"), ("loss", "loss")):
            values = [float(r[column]) for r in own]
            assert point[what] == pytest.approx(statistics.mean(values), rel=1e-4)
            assert point[f"{what}_std"] == pytest.approx(statistics.stdev(values), abs=1e-3)


def test_finished_cells_are_kept_and_missing_ones_made(dense: Path, folder: Path) -> None:
    before = {f.name: f.read_bytes() for f in (folder / "cells").iterdir()}
    table = (folder / "criteria.csv").read_bytes()
    (folder / "cells" / "random-1.json").unlink()
    command = ("compare", dense, *QUICK, "--criteria", "random,jacobian", "--out", folder)
    done(*command, "--seeds", 2)
    after = {f.name: f.read_bytes() for f in (folder / "cells").iterdir()}
    assert after.keys() == before.keys()
    made = {n: json.loads(t) for n, t in after.items()}
    for name, text in before.items():
        if name != "random-1.json":
            assert after[name] == text
    again = json.loads(before["random-1.json"])
    assert made["random-1.json"]["points"] == again["points"]
    assert len((folder / "criteria.csv").read_bytes().splitlines()) == len(table.splitlines())


@pytest.mark.slow
def test_an_ablation_goes_beside_the_criteria(dense: Path, folder: Path) -> None:
    done("compare", dense, *QUICK, "--ablate", "scope", "--seeds", 1, "--out", folder)
    every = rows(folder, "ablation-scope")
    found = {r["variant"]: r["loss"] for r in every if r["target"] == "macs=50%"}
    assert set(found) == {"global", "local", "isomorphic"}
    assert found["local"] != found["global"]
    whole = [r for r in rows(folder) if (r["variant"], r["seed"]) == ("jacobian", "0")]
    assert found["global"] == whole[2]["loss"]  # which is the criterion itself


def test_another_budget_wants_another_folder(dense: Path, folder: Path) -> None:
    found = run("compare", dense, *QUICK[:-1], "80,40", "--out", folder)
    assert found.exit_code == 1 and "holds another run: its keep is '80,50'" in found.stderr


def test_a_criterion_that_cannot_is_left_out_and_said(dense: Path, tmp_path: Path) -> None:
    command = ("compare", dense, *QUICK, "--seeds", 1, "--out", tmp_path / "a")
    found = run(*command, "--criteria", "l1,nonsense")
    assert found.exit_code == 0
    assert "nonsense is left out: no criterion named 'nonsense'" in found.stderr
    assert "l1" in found.stdout
    assert run(*command, "--criteria", "nonsense").exit_code == 1


def test_a_second_line_for_what_is_recalibrated(dense: Path, tmp_path: Path) -> None:
    arguments = ("--criteria", "jacobian", "--seeds", 1, "--recalibrate", 128)
    found = done("compare", dense, *QUICK, *arguments, "--out", tmp_path / "run")
    cut, fitted = found["criteria"]
    assert [cut["criterion"], fitted["criterion"]] == ["jacobian", "jacobian, recalibrated"]
    for before, after in zip(cut["points"][1:], fitted["points"][1:], strict=True):
        assert before["macs"] == after["macs"]
    assert fitted["points"][2]["loss"] < cut["points"][2]["loss"]
