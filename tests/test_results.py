"""The page of results says what the committed cells of the study give."""

from __future__ import annotations

import re

import pytest

from benchmarks._harness import RESULTS, spread
from benchmarks.study import page, sources
from benchmarks.study.tuning import best_rate


@pytest.mark.parametrize("path", page.PAGES, ids=lambda path: path.name)
def test_the_page_is_what_the_cells_give(path: object) -> None:
    text = path.read_text(encoding="utf-8")  # type: ignore[attr-defined]
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


def test_each_cell_says_its_command_and_commit() -> None:
    cells = [
        cell
        for file in RESULTS.glob("study_*.json")
        for cell in sources.benchmark(file.stem).get("cells", {}).values()
    ]
    assert cells
    assert all(cell["command"].startswith("python -m benchmarks.study") for cell in cells)
    assert all(re.fullmatch(r"[0-9a-f]{7,}", cell["commit"]) for cell in cells)


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
