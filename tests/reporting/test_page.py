"""The page: all that the record has, nothing it has not, and no word of it is ever markup."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jinja2
import pytest

import obc
from obc import ObcError
from obc.reporting.figures import comparison_charts
from obc.reporting.page import page, report
from obc.reporting.record import FILE, Curve, Latency, Point, Record, Scores, Step
from tests.reporting.markup import Markup
from tests.reporting.sample import full

# Part of the record: the figure it is drawn as, and the heading above it.
PARTS = {
    "figures": ("summary", ""),
    "warnings": ("warnings", "Warnings"),
    "latency": ("latency", "Models"),
    "scenes": ("scene", "What is found"),
    "widths": ("widths", "Widths"),
    "recalibration": ("errors", "Recalibration"),
    "tuning": ("tuning", "Tuning"),
    "steps": ("steps", "Planning"),
    "scores": ("scores", "Scores"),
    "comparison": ("comparison", "Criteria compared"),
    "heats": ("heat", "JᵀJ"),
}
ALWAYS = {"command", "environment"}
HOSTILE = (
    "<script>alert('{}')</script><img src=x onerror=\"alert(1)\">\"' onload=x {{{{ 7*7 }}}} &amp;"
)


def test_the_report_is_written_beside_the_record(tmp_path: Path) -> None:
    full().save(tmp_path)
    path = obc.report(tmp_path)
    assert path == tmp_path / "report.html"
    assert sorted(f.name for f in tmp_path.iterdir()) == [FILE, "report.html"]
    assert path.read_text(encoding="utf-8") == page(full())


def test_every_part_has_its_figure_and_heading() -> None:
    found = Markup(page(full()))
    assert found.figures == {kind for kind, _ in PARTS.values()} | {"times"} | ALWAYS
    assert {h for _, h in PARTS.values() if h} <= set(found.headings)
    text = " ".join(found.words)
    for word in (
        "98.61",
        "obc demo --seed 0",
        "a processor",
        "÷ 2.00",
        "cut 3e-7",
        "16 →\xa08 →\xa04",
    ):
        assert word in text


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_is_missing_leaves_no_trace(part: str) -> None:
    empty: Any = None if part == "widths" else []
    found = Markup(page(full().model_copy(update={part: empty})))
    kind, heading = PARTS[part]
    gone = {kind, "times"} if part == "comparison" else {kind}
    kinds = {kind for kind, _ in PARTS.values()} | {"times"} | ALWAYS
    assert found.figures == kinds - gone
    assert heading not in found.headings


def test_a_record_of_title_and_command_makes_a_page() -> None:
    found = Markup(page(Record(title="bare", command="obc show")))
    assert found.headings == ["bare", "How it was made"]
    assert found.figures == ALWAYS


def test_no_word_of_the_record_is_markup() -> None:
    plain, hostile = Markup(page(full())), Markup(page(full(HOSTILE)))
    assert hostile.tags.count("script") == hostile.tags.count("img") == 0
    # Names of criteria decide colours, and shapes no elements.
    assert hostile.tags == plain.tags
    assert [n for n, _ in hostile.attributes] == [n for n, _ in plain.attributes]
    assert any("<script>alert('layer3.2.conv2')</script>" in w for w in hostile.words)
    assert not any("49 &amp;" in w for w in hostile.words)


def test_without_escaping_that_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    careful = jinja2.Environment

    def careless(**options: Any) -> jinja2.Environment:
        return careful(**{**options, "autoescape": False})

    monkeypatch.setattr(jinja2, "Environment", careless)
    assert "<script>alert('layer3.2.conv2')</script>" in page(full(HOSTILE))


def test_the_page_asks_for_nothing_from_elsewhere() -> None:
    text = page(full())
    found = Markup(text)
    asked = [v for n, v in found.attributes if n in ("src", "href", "xlink:href", "action")]
    assert asked and all(re.match(r"data:image/(png|jpeg);base64,", v) for v in asked)
    assert not re.search(r"url\((?!#)|@import|https?:", text)
    assert "default-src 'none'" in text


def test_odd_but_valid_records_are_drawn() -> None:
    point = Point(channels=0.5, params=0.5, macs=0.5, quality=10.0)
    record = Record(
        title="odd",
        command="",
        latency=[Latency(name="nothing measured"), Latency(name="zero", macs=0, milliseconds=0.0)],
        steps=[Step(step=n, macs=0, params=5, channels=5 - n) for n in range(2)],
        scores=[Scores(criterion="none", edges=[0.0, 1.0], counts=[0], cut=7.0)],
        comparison=[Curve(criterion=f"own {n}", points=[point]) for n in range(20)],
    )
    found = Markup(page(record))
    assert {"latency", "steps", "scores", "comparison"} <= found.figures
    assert "Time per scoring step" not in " ".join(found.words)


def test_a_single_step_is_no_curve() -> None:
    record = Record(
        title="one", command="", steps=[Step(step=0, macs=1, params=1, channels=1, loss=1.0)]
    )
    assert "steps" not in Markup(page(record)).figures


def test_criteria_keep_their_colours_in_all_figures() -> None:
    text = page(full())
    for name in ("jacobian", "taylor"):
        assert len(set(re.findall(rf'swatch s(\d)"[^>]*><path[^>]*/></svg>{name}<', text))) == 1


def test_lines_stand_in_the_order_of_their_colours() -> None:
    record = full()
    record.comparison.reverse()
    names = [line.name for line in comparison_charts(record.comparison, record.metric)[0].lines]
    assert names == ["jacobian", "taylor", "random"]


def test_a_folder_without_a_record_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ObcError, match=r"holds no record\.json") as error:
        report(tmp_path)
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


def test_a_broken_record_leaves_the_old_page(tmp_path: Path) -> None:
    full().save(tmp_path)
    before = report(tmp_path).read_bytes()
    (tmp_path / FILE).write_text("{")
    with pytest.raises(ObcError, match="is not a record"):
        report(tmp_path)
    assert (tmp_path / "report.html").read_bytes() == before


def test_a_page_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    full().save(tmp_path)
    (tmp_path / "report.html").mkdir()
    with pytest.raises(ObcError, match=r"report\.html cannot be written"):
        report(tmp_path)
    assert sorted(f.name for f in tmp_path.iterdir()) == [FILE, "report.html"]
