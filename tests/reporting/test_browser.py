"""The page in a real browser: wide and narrow, light and dark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from obc.reporting.page import report
from obc.reporting.record import Widths
from tests.reporting.browser import CHROMIUM, Browser
from tests.reporting.sample import full

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium here: the report is not looked at (make browser)"
)
LONG = "a_layer_with_a_name_that_no_phone_is_wide_enough_for_{}"
KINDS = {
    "summary", "warnings", "latency", "scene", "widths", "errors", "tuning", "steps", "scores",
    "comparison", "times", "heat", "command", "environment",
}  # fmt: skip


def many_plans() -> Widths:
    before = {LONG.format(n): 2048 for n in range(3)}
    return Widths(before=before, after={f"{n}x": dict.fromkeys(before, 1024) for n in range(7)})


def brightness(colour: str) -> float:
    red, green, blue = map(int, re.findall(r"\d+", colour)[:3])
    return (red + green + blue) / 765


@pytest.mark.parametrize(
    ("width", "dark", "word"),
    [(1200, False, "{}"), (1200, True, LONG), (360, False, LONG), (360, True, "{}")],
    ids=["desktop", "desktop-dark-long", "phone-long", "phone-dark"],
)
def test_everything_is_there_and_nothing_sticks_out(
    width: int, dark: bool, word: str, tmp_path: Path
) -> None:
    record = full(word)
    if word == LONG:
        record.widths = many_plans()
    record.save(tmp_path)
    found = Browser(tmp_path, width, dark).look(report(tmp_path))
    assert found["errors"] == []
    assert found["width"] == width and found["scroll"] <= width
    assert found["outside"] == []
    assert {f["kind"] for f in found["figures"]} == KINDS
    drawn = KINDS - {"summary", "warnings", "latency", "command", "environment"}
    for figure in found["figures"]:
        assert figure["width"] > 100 and figure["height"] > 15
        assert figure["shapes"] > 1 or figure["kind"] not in drawn
    assert min(found["letters"]) > 9
    assert (brightness(found["ink"]) > brightness(found["paper"])) is dark


def test_the_console_stays_empty(tmp_path: Path) -> None:
    full().save(tmp_path)
    assert Browser(tmp_path).complaints(report(tmp_path)) == []


def test_names_that_are_scripts_do_not_run(tmp_path: Path) -> None:
    full("<script>console.error('{}')</script><img src=x onerror=\"throw 1\">").save(tmp_path)
    browser, page = Browser(tmp_path, 360), report(tmp_path)
    assert browser.complaints(page) == []
    found = browser.look(page)
    assert found["errors"] == [] and found["scroll"] <= 360


def test_these_checks_can_fail(tmp_path: Path) -> None:
    full().save(tmp_path)
    page = report(tmp_path)
    text = page.read_text(encoding="utf-8")
    wide = '<div style="width: 2000px">x</div><script>throw new Error("seen")</script>'
    page.write_text(text.replace("</main>", wide + "</main>"), encoding="utf-8")
    browser = Browser(tmp_path, 360)
    found = browser.look(page)
    assert found["scroll"] >= 2000 and "seen" in found["errors"][0]
    # On the page as it is, the script is stopped, and the console tells of it.
    assert any("Content Security Policy" in line for line in browser.complaints(page))


def test_it_can_be_printed(tmp_path: Path) -> None:
    full().save(tmp_path)
    paper = tmp_path / "report.pdf"
    Browser(tmp_path).run(report(tmp_path), f"--print-to-pdf={paper}", "--no-pdf-header-footer")
    assert paper.read_bytes().startswith(b"%PDF")
