"""A folder is claimed by one run, goes on with the same, and is kept from any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from obc.disk.claim import FILE, claim, claimed
from obc.errors import ObcError

FACTS = {"command": "prune", "target": "macs=2x", "ignore": ["fc"], "weights": None}


def test_the_same_facts_go_on(tmp_path: Path) -> None:
    claim(tmp_path / "a" / "b", FACTS)
    claim(tmp_path / "a" / "b", {**FACTS, "seed": None})
    assert [f.name for f in (tmp_path / "a" / "b").iterdir()] == [FILE]


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"target": "macs=3x"}, "its target is 'macs=2x', not 'macs=3x'; go away"),
        ({"seed": 1}, "its seed is None, not 1"),
        ({"ignore": None}, r"its ignore is \['fc'\], not None"),
    ],
)
def test_other_facts_are_refused(tmp_path: Path, other: dict[str, object], text: str) -> None:
    claim(tmp_path, FACTS)
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(ObcError, match=text):
        claim(tmp_path, {**FACTS, **other}, advice="go away")
    assert (tmp_path / FILE).read_bytes() == before


@pytest.mark.parametrize("text", ["", "{", "[1]", "\udc80"])
def test_a_damaged_claim_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ObcError, match=FILE):
        claim(tmp_path, FACTS)


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ObcError, match="holds files but no run"):
        claim(tmp_path, FACTS)
    with pytest.raises(ObcError, match="is no folder that can be written to"):
        claim(tmp_path / "thesis.tex", FACTS)
    assert [f.name for f in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_claim_cut_short_is_no_claim(tmp_path: Path) -> None:
    (tmp_path / f".{FILE}-x1").write_text("{")  # what a killed process leaves
    claim(tmp_path, FACTS)


@pytest.mark.parametrize("worked", [False, True])
def test_a_folder_is_free_again_unless_work_was_done(tmp_path: Path, worked: bool) -> None:
    folder = tmp_path / "run"
    with pytest.raises(ObcError, match="no"), claimed(folder, FACTS):
        if worked:
            (folder / "plan.json").write_text("{}")
        raise ObcError("no")
    assert folder.exists() == worked
