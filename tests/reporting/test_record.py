"""The record: what was saved is what is read, and nothing else is read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from obc.errors import ObcError
from obc.reporting.page import report
from obc.reporting.record import FILE, Figure, Heat, Record, Scores, Step, Widths
from tests.reporting.markup import Markup
from tests.reporting.sample import full


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    record = full()
    path = record.save(tmp_path / "runs" / "new")
    assert path == tmp_path / "runs" / "new" / FILE
    assert Record.load(path.parent) == record
    assert [f.name for f in path.parent.iterdir()] == [FILE]


def test_title_and_command_are_enough(tmp_path: Path) -> None:
    Record(title="a", command="b").save(tmp_path)
    assert Record.load(tmp_path).title == "a"


def _set(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(facts: Any) -> None:
        for key in path[:-1]:
            facts = facts[key]
        facts[path[-1]] = value

    return change


BROKEN = {
    "another format": _set("format", value="obc.plan"),
    "a later version": _set("version", value=3),
    "an unknown entry": _set("colour", value="red"),
    "no title": lambda facts: facts.pop("title"),
    "a number as text": _set("steps", 0, "macs", value="40"),
    "a negative cost": _set("steps", 0, "macs", value=-1),
    "a crooked histogram": _set("scores", 0, "counts", value=[1]),
    "falling edges": _set("scores", 1, "edges", value=[0.0, 2.0, 1.0]),
    "a log axis from zero": _set("scores", 1, "log", value=True),
    "a heat map that is not square": _set("heats", 0, "values", value=[[1.0, 2.0]]),
    "another plan's sites": _set("widths", "after", "2x", value={"fc": 3}),
    "an empty curve": _set("comparison", 0, "points", value=[]),
    "more removed than there is": _set("comparison", 0, "points", 0, "macs", value=1.5),
    "no epochs": _set("tuning", 0, "epochs", value=[]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_record_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    path = full().save(tmp_path)
    facts = json.loads(path.read_text())
    BROKEN[name](facts)
    path.write_text(json.dumps(facts))
    with pytest.raises(ObcError, match="is not a record this version reads") as error:
        Record.load(tmp_path)
    assert "\n" not in str(error.value) and FILE in str(error.value)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[]", b'{"title": "a", "title": "b"}', b'{"seed": NaN}']
)
def test_what_is_no_record_is_refused_in_one_sentence(content: bytes, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(ObcError, match="is not a record") as error:
        Record.load(tmp_path)
    assert "\n" not in str(error.value)


def test_a_folder_without_a_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(ObcError, match="no run of obc was recorded there"):
        Record.load(tmp_path / "nowhere")


def test_a_folder_in_place_of_the_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(ObcError, match="cannot be read"):
        Record.load(tmp_path)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused_at_once(bad: float) -> None:
    with pytest.raises(ValidationError):
        Figure(name="a", value=bad)
    with pytest.raises(ValidationError):
        Step(step=0, macs=1, params=1, channels=1, loss=bad)
    with pytest.raises(ValidationError):
        Heat(layer="a", values=[[bad]])


def test_parts_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(ValidationError, match="other sites"):
        Widths(before={"a": 1}, after={"2x": {"b": 1}})
    with pytest.raises(ValidationError, match="one edge more"):
        Scores(criterion="l1", edges=[0.0], counts=[])


def test_nothing_is_written_that_could_not_be_read(tmp_path: Path) -> None:
    record = full()
    path = record.save(tmp_path)
    before = path.read_bytes()
    record.warnings.append(3)  # type: ignore[arg-type]
    with pytest.warns(UserWarning), pytest.raises(ObcError, match=r"warnings\.2"):
        record.save(tmp_path)
    assert path.read_bytes() == before


def test_a_save_that_fails_leaves_the_old_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = full().save(tmp_path)
    before = path.read_bytes()

    def full_disk(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(ObcError, match="cannot be written: no space left"):
        Record(title="new", command="new").save(tmp_path)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ObcError, match="no folder that can be written to"):
        full().save(tmp_path / "file")


def test_a_record_from_before_tasks_is_still_shown(tmp_path: Path) -> None:
    """Version 1, as it was written, called the value that counts accuracy."""
    old = (Path(__file__).parent / "fixtures" / "record-v1.json").read_text(encoding="utf-8")
    (tmp_path / FILE).write_text(old, encoding="utf-8")
    record, raw = Record.load(tmp_path), json.loads(old)
    assert raw["version"] == 1 and "quality" not in old
    for part in ("steps", "latency"):
        values = [entry["accuracy"] for entry in raw[part]]
        assert [entry.quality for entry in getattr(record, part)] == values and any(values)
    points = [point["accuracy_std"] for curve in raw["comparison"] for point in curve["points"]]
    assert [p.quality_std for curve in record.comparison for p in curve.points] == points
    assert record.metric.higher and record.metric.unit == "%"
    page = report(tmp_path).read_text(encoding="utf-8")
    assert "accuracy" in page and "98.61" in page
    assert Markup(page).figures >= {"steps", "comparison", "tuning", "latency"}
