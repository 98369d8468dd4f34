"""Curves as files: the kind that was asked for, with every name in it."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from obc import ObcError
from obc.reporting.curves import draw_comparison
from obc.reporting.record import Curve, Point
from tests.reporting.sample import full


def words(path: Path) -> set[str]:
    return {
        (e.text or "").strip() for e in ElementTree.parse(path).iter() if e.tag.endswith("text")
    }


def test_svg_has_names_and_axes_and_is_the_same_each_time(tmp_path: Path) -> None:
    curves = full().comparison
    path = draw_comparison(curves, tmp_path / "a.svg", "a title")
    expected = {
        "jacobian",
        "taylor",
        "random",
        "MACs removed, %",
        "Accuracy, % ↑",
        "Loss ↓",
        "a title",
    }
    assert expected <= words(path)
    draw_comparison(curves, tmp_path / "b.svg", "a title")
    assert path.read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_png_is_a_png(tmp_path: Path) -> None:
    path = draw_comparison(full().comparison, tmp_path / "a.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [f.name for f in tmp_path.iterdir()] == ["a.png"]


def test_the_spread_is_drawn_where_there_is_one(tmp_path: Path) -> None:
    bands = []
    for std in (0.0, 2.0):
        points = [
            Point(channels=c, params=c, macs=c, quality=90 - c, quality_std=std) for c in (0.0, 0.5)
        ]
        path = draw_comparison([Curve(criterion="l1", points=points)], tmp_path / "a.svg")
        assert "loss" not in words(path)
        bands.append(path.read_text().count("FillBetweenPolyCollection"))
    assert bands == [0, 3]


def test_a_name_that_looks_like_a_formula_or_markup_stays_a_name(tmp_path: Path) -> None:
    point = Point(channels=0.1, params=0.1, macs=0.1, quality=1.0)
    names = ["$\\frac{$", "<script>", "_hidden"]
    curves = [Curve(criterion=name, points=[point]) for name in names]
    path = draw_comparison(curves, tmp_path / "a.svg", "$x")
    assert {*names, "$x"} <= words(path)
    assert not any(e.tag.endswith("script") for e in ElementTree.parse(path).iter())


def test_bad_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ObcError, match=r"\.png or \.svg"):
        draw_comparison(full().comparison, tmp_path / "a.pdf")
    with pytest.raises(ObcError, match="no curves"):
        draw_comparison([], tmp_path / "a.png")
    with pytest.raises(ObcError, match="cannot be written"):
        draw_comparison(full().comparison, tmp_path / "nowhere" / "a.png")
