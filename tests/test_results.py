"""The page of results says what the committed cells of the study give."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import _harness
from benchmarks._curves import Data
from benchmarks._harness import spread
from benchmarks._networks import Folders
from benchmarks.study import claims, page, sources, tuned, tuning
from benchmarks.study.detection import detection
from benchmarks.study.tuning import ARMS, TUNINGS, arms, best_rate, chosen_at, next_rate
from obc.models import resnet20


@pytest.mark.parametrize("path", page.PAGES, ids=lambda path: path.name)
def test_the_page_is_what_the_cells_give(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert page.MARKED.search(text)
    assert page.filled(text) == text, "run python -m benchmarks.study --page"


def test_a_number_that_was_changed_by_hand_is_noticed() -> None:
    text = page.PAGES[0].read_text(encoding="utf-8")
    block = next(m[0] for m in page.MARKED.finditer(text) if re.search(r"\d\d\.\d", m[0]))
    changed = text.replace(block, re.sub(r"\d\d\.\d", "99.9", block))
    assert changed != text
    assert page.filled(changed) == text


def test_every_block_is_on_a_page_and_every_picture_is_there() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in page.PAGES)
    assert {match[2] for match in page.MARKED.finditer(text)} == set(page.BLOCKS)
    pictures = set(re.findall(r"study_\w+\.svg", text))
    assert pictures
    assert all((page.ROOT / "docs" / name).is_file() for name in pictures)


def test_a_cell_is_kept_with_its_command_and_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_harness, "RESULTS", tmp_path)
    monkeypatch.setattr("sys.argv", ["study", "resnet20", "--cifar", str(tmp_path)])
    _harness.Cells("study_none", {"rows": 3}).add("l2|0", {"whole": 91.0})
    again = _harness.Cells("study_none", {"rows": 3})
    cell = again.results["l2|0"]
    assert cell["whole"] == 91.0 and cell["commit"] == _harness.commit()
    assert cell["command"].endswith(" resnet20 --cifar FOLDER")
    again.add("l2|1", {"whole": 92.0})
    assert list(_harness.Cells("study_none", {}).results) == ["l2|0", "l2|1"]
    assert _harness.Cells("study_other", {}).results == {}
    with pytest.raises(SystemExit, match="measured with rows 3, not 4"):
        _harness.Cells("study_none", {"rows": 4})


def test_a_spread_is_that_of_a_sample() -> None:
    assert spread([]) == ""
    assert spread([2.0]) == "2.0"
    assert spread([1.0, 3.0]) == "2.0 ± 1.4"


def test_a_rate_is_chosen_by_validation_images_of_seed_0() -> None:
    cells = {
        "4x|EP|0.01|0": {"validation": [0.0, 70.0], "test": [99.0]},
        "4x|EP|0.03|0": {"validation": [90.0, 71.0], "test": [10.0]},
        "4x|EP|0.003|0": {"validation": [99.0, 60.0], "test": [10.0]},
        "4x|EP|0.01|1": {"validation": [99.0, 99.0], "test": [99.0]},
    }
    assert best_rate(cells, 4.0, "EP") == 0.03


def test_ways_are_compared_by_the_seeds_that_all_of_them_have() -> None:
    cells = {f"4x|{arm}|0.01|{seed}": seed for arm in ("naive", "EP") for seed in range(3)}
    del cells["4x|EP|0.01|1"]
    both = (0.01, {0: 0, 2: 2})
    rates = dict.fromkeys(ARMS, 0.01)
    assert arms(cells, 4.0, rates) == {"naive": both, "EP": both}


@pytest.mark.parametrize(
    ("validation", "further"),
    [
        ({}, 0.001),
        ({0.001: 50.0}, 0.0003),
        ({0.001: 50.0, 0.0003: 40.0}, 0.003),
        ({0.001: 50.0, 0.0003: 40.0, 0.003: 45.0}, None),
        ({0.001: 50.0, 0.0003: 40.0, 0.003: 60.0}, 0.01),
        ({0.001: 50.0, 0.0003: 55.0, 0.003: 45.0}, 0.0001),
        ({0.001: 50.0, 0.0003: 55.0, 0.003: 45.0, 0.0001: 57.0}, None),
        ({0.03: 50.0, 0.1: 60.0}, None),
    ],
)
def test_rates_are_tried_until_the_best_has_both_neighbours(
    validation: dict[float, float], further: float | None
) -> None:
    cells = {f"4x|EP|{rate:g}|0": {"validation": [v]} for rate, v in validation.items()}
    assert next_rate(cells, 4.0, "EP") == further


def searched(*speedups: float) -> dict[str, Any]:
    """Cells of a search that ended at 0.01 for each way."""
    return {
        f"{s:g}x|{arm}|{rate:g}|0": {"validation": [v], "test": [10.0, v], "CPU seconds": 1.0}
        for s in speedups
        for arm in ARMS
        for rate, v in ((0.003, 40.0), (0.01, 50.0), (0.03, 45.0))
    }


def test_a_tuning_takes_rates_of_another_at_the_nearest_speed_up() -> None:
    known, borrowing = searched(2.1, 8.0), TUNINGS["tuning_resnet56_between"]
    assert [chosen_at(borrowing, s, known) for s in (2.5, 4.0, 7.0)] == [2.1, 2.1, 8.0]
    assert chosen_at(TUNINGS["tuning_resnet56"], 8.0, known) == 8.0
    assert chosen_at(TUNINGS["tuning_resnet56"], 4.0, known) is None  # its own, or none
    del known["2.1x|EP|0.03|0"]  # a search that has not ended says nothing
    assert [chosen_at(borrowing, s, known) for s in borrowing.speedups] == [8.0, 8.0]
    assert chosen_at(borrowing, 2.5, {}) is None


@pytest.fixture
def cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes cells of a tuning beside copies of the other results."""
    folder = shutil.copytree(sources.RESULTS, tmp_path / "results")
    for name in TUNINGS:
        (folder / f"study_{name}.json").unlink(missing_ok=True)
    monkeypatch.setattr(sources, "RESULTS", folder)

    def write(name: str, results: dict[str, Any]) -> None:
        (folder / f"study_{name}.json").write_text(json.dumps({"cells": results}))

    write("tuning", searched(2.5, 4.0))
    return write


def run_to(after: float, *whole: float) -> dict[str, Any]:
    seconds = {"CPU seconds": 1.0, "CPU seconds before": {"sparse learning": 70.0}}
    return {"whole": whole, "validation": [10.0, after], "test": [10.0, after], **seconds}


@pytest.mark.parametrize(
    ("after", "side"), [(91.0, "1.5 points below"), (93.0, "0.5 points above")]
)
def test_the_claim_on_resnet56_speaks_of_what_was_run(cells: Any, after: float, side: str) -> None:
    assert "| not run | out of reach here |" in claims.claims()
    cells("tuning_resnet56", {**searched(8.0), "8x|naive|0.01|0": run_to(60.0, 92.5)})
    assert "| not run | out of reach here |" in claims.claims()  # that is not 2.1x
    runs = {f"2.1x|{arm}|0.01|0": run_to(80.0, 92.5) for arm in ARMS}
    runs["2.1x|EP|0.01|0"] = run_to(after, 92.5)
    cells("tuning_resnet56", {**searched(2.1), **runs})
    text = claims.claims()
    assert "| not run |" not in text
    assert f"92.5 → naive 80.0, EP {after}, recalibrated 80.0" in text
    assert f"| the best way, EP, ends {side}" in text


def test_a_table_says_at_which_budget_its_rates_were_chosen(cells: Any) -> None:
    cells("tuning_resnet56", searched(2.1))
    cells("tuning_resnet56_between", {"2.5x|naive|0.01|0": run_to(80.0, 92.5)})
    text = tuned.tables()
    assert "best for ResNet-56 at 2.1×: none was chosen at this budget" in text
    assert text.count("Rates are those") == 1


def test_a_table_of_whole_epochs_says_how_images_were_changed(cells: Any) -> None:
    cells("tuning_vgg", searched(9.0))
    assert "mirrored" not in tuned.tables()
    cells("tuning_vgg_whole", {"9x|naive|0.01|0": run_to(75.0, 83.0)})
    assert "MACs ÷ 9, 10 epochs of 45,000 images, 1 seed:" in tuned.tables()
    assert tuned.tables().count("Images are cropped and mirrored") == 1


def test_views_are_images_of_the_same_size_or_the_images_themselves() -> None:
    images = torch.rand(8, 3, 32, 32)
    assert tuning.views(False)(images) is images
    changed = tuning.views(True)(images)
    assert changed.shape == images.shape
    assert not torch.equal(changed, images)


def test_sparse_learning_is_held_against_as_many_epochs_of_tuning(cells: Any) -> None:
    first = {f"4x|naive|0.01|{seed}": run_to(60.0 + seed, 91.0, 90.0) for seed in range(3)}
    cells("tuning_sparse", first)
    assert "Sparse learning:" not in tuned.overview()  # nothing to hold it against
    assert "70 CPU s, and the whole network from 91.0 ± 0.0 to 90.0 ± 0.0%" in tuned.tables()
    alone = {f"4x|naive|0.01|{seed}": run_to(57.0 - seed, 91.0) for seed in (0, 2)}
    cells("tuning_double", alone)
    assert "8 epochs of tuning alone: naive 5.0 ± 2.8." in tuned.overview()  # 3 and 7


def test_ways_are_told_by_the_least_and_the_most_they_are_ahead(cells: Any) -> None:
    assert tuned.ahead_by("EP", "naive") == "0.0 to 0.0 points, above zero in 0 of 2 settings"
    runs = {f"8x|{arm}|0.01|0": run_to(after) for arm, after in (("naive", 60.0), ("EP", 61.5))}
    cells("tuning_resnet56", searched(8.0) | runs)
    assert tuned.ahead_by("EP", "naive") == "0.0 to 1.5 points, above zero in 1 of 3 settings"
    assert tuned.ahead_by("naive", "EP") == "−1.5 to 0.0 points, above zero in 0 of 3 settings"
    assert "| ResNet-56 | 8× | 4 epochs | 2 | 1 | 60.0 | 1.5 |" in tuned.overview()


def test_ep_is_held_against_tuning_for_as_long(cells: Any) -> None:
    runs = {f"6x|{arm}|0.01|0": run_to(64.0) for arm in ARMS}
    cells("tuning_vgg", searched(6.0) | runs | {"6x|EP|0.01|0": run_to(65.0)})
    assert "Equal time" not in tuned.overview()
    longer = {"6x|naive|0.01|0": run_to(66.5), "6x|recalibrated|0.01|0": run_to(63.0)}
    cells("tuning_vgg_equal", longer)
    assert "6×: EP − naive −1.5, EP from recalibrated − recalibrated 1.0." in tuned.overview()


def test_jc_is_held_against_the_best_of_the_papers_rivals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(sources.RESULTS, tmp_path / "results")
    monkeypatch.setattr(sources, "RESULTS", folder)
    monkeypatch.setattr(claims, "NETWORKS", {"vit": "ViT"})

    def cell(*cut: float) -> dict[str, Any]:
        return {"points": [{"speedup": 2.0, "cut": number} for number in cut]}

    runs = {"JC, as printed": (60.0, 40.0), "l2": (70.0, 20.0), "random": (10.0, 10.0)}
    results = {f"{name}|0": cell(*numbers) for name, numbers in runs.items()}
    results["group JC ÷ cost|0"] = cell(90.0, 90.0)  # ours, too: no rival
    (folder / "study_vit.json").write_text(json.dumps({"cells": results}))
    assert "| ViT | 50.0 | l2 45.0 | 5.0 |  |  |  |" in claims.rivals()
    assert claims.ahead_of_rivals("cut").endswith(", ViT 5.0")  # the digits come first
    results["l2|0"] = cell(90.0, 20.0)
    (folder / "study_vit.json").write_text(json.dumps({"cells": results}))
    assert "| ViT | 50.0 | l2 55.0 | −5.0 |  |  |  |" in claims.rivals()
    assert claims.ahead_of_rivals("cut").endswith(", ViT −5.0")


def test_a_tuning_that_searches_is_shown_at_the_speed_ups_it_has_searched(cells: Any) -> None:
    assert "VGG16" not in tuned.tables()
    cells("tuning_vgg", searched(3.0) | {"9x|naive|0.01|0": run_to(50.0)})
    text = tuned.tables()
    assert "VGG16 of quarter width, MACs ÷ 3, 4 epochs, C and D at 0.2 × the rate, 1 seed:" in text
    assert "MACs ÷ 9" not in text
    assert "was chosen" not in text


@pytest.mark.parametrize("name", ["tuning_sparse", "tuning_double"])
def test_sparse_learning_changes_the_network_that_is_cut(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = resnet20(width=4).eval()
    batch = (torch.randn(80, 3, 8, 8), torch.randint(10, (80,)))
    monkeypatch.setattr(tuning, "network", lambda *_: (given, Data(batch, batch)))
    before = {key: value.clone() for key, value in given.state_dict().items()}
    few = dataclasses.replace(TUNINGS[name], images=64)
    bench = tuning.Bench(few, Folders(*[None] * 5), 4.0, 0, None)
    weights, sparse = bench.model.state_dict(), name == "tuning_sparse"
    assert torch.equal(weights["fc.weight"], before["fc.weight"]) != sparse
    assert all(torch.equal(given.state_dict()[key], before[key]) for key in before)
    assert len(bench.whole) == 1 + sparse
    assert list(bench.seconds) == ["sparse learning"] * sparse


def test_sparse_learning_has_the_settings_of_the_recipe_in_fewer_epochs() -> None:
    stage = tuning.sparse_recipe(4).sparse
    assert stage is not None
    assert stage.model_dump() == {
        **{"epochs": 4, "milestones": [2, 3]},
        **{"lr": 0.01, "strength": 0.0005},
    }


@pytest.mark.parametrize(
    ("cut", "recalibrated", "kept"), [(0.2, 0.4, True), (0.7, 0.73, True), (0.4, 0.6, False)]
)
def test_the_goal_of_detectors_is_either_of_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: float, recalibrated: float, kept: bool
) -> None:
    monkeypatch.setattr(sources, "RESULTS", tmp_path)
    assert detection() == ""
    stages = {"cut": {"map50": cut, "map": 0.1}, "recalibrated": {"map50": recalibrated, "map": 0}}
    whole = {"map50": 0.9, "map": 0.5, "params": 1e6, "macs": 1e8, "classes": {"RBC": [0.9, 0.5]}}
    cells = {"whole": whole, "jacobian|0|channels=50%": stages, "hessian|0|channels=50%": stages}
    protocol = {"evaluation": "72 images", "calibration": "8", "digest of the weights": "ab"}
    (tmp_path / "detection_yolo11n.json").write_text(json.dumps({**protocol, "cells": cells}))
    text = detection()
    assert f"is {'kept' if kept else 'missed'}." in text
    assert f"| jacobian |  |  |  | {cut:.3f} → {recalibrated:.3f} |  |  |" in text
    assert "cut, at 0 of 1 budgets" in text  # level is not ahead
    assert "recalibration left 0 as good or better" in text and "0.100 → 0.000" in text
    assert "taken back" not in text  # nothing was judged
    judged = {**stages, "judged": [[0.9, 0.6], [0.8, 0.5]], "taken back": {"map50": 0.1, "map": 0}}
    cells["jacobian|0|channels=50%"] = judged
    (tmp_path / "detection_yolo11n.json").write_text(json.dumps({**protocol, "cells": cells}))
    assert "1 of 1 fits was taken back (0.100 → 0.000 on test images)" in detection()
