"""The page of results says what the committed cells of the study give."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import _harness
from benchmarks._harness import spread
from benchmarks.study import page, sources
from benchmarks.study.detection import detection
from benchmarks.study.tuning import ARMS, arms, best_rate, next_rate


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
    known = {f"4x|{arm}|0.01|0": {"validation": [50.0]} for arm in ARMS}
    cells = {f"4x|{arm}|0.01|{seed}": seed for arm in ("naive", "EP") for seed in range(3)}
    del cells["4x|EP|0.01|1"]
    assert arms(cells, 4.0, known) == {"naive": (0.01, [0, 2]), "EP": (0.01, [0, 2])}


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
