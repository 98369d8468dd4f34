"""An error says which section of the documentation explains it, and that section is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import obc
from obc.errors import _SECTIONS

ROOT = Path(__file__).parents[1]


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}


def test_the_sections_that_errors_name_exist() -> None:
    page = anchors((ROOT / "docs/refused.md").read_text(encoding="utf-8"))
    assert set(_SECTIONS.values()) <= page
    assert "no-such-section" not in page


def test_a_room_that_raises_has_a_section() -> None:
    rooms = {
        path.relative_to(ROOT / "src/obc").parts[0]
        for path in (ROOT / "src/obc").rglob("*.py")
        if "raise ObcError" in path.read_text(encoding="utf-8")
    }
    # A command, a comparison and the report repeat what the rooms below them refused.
    assert rooms - {"cli", "experiments", "reporting"} <= set(_SECTIONS)


def test_an_error_names_the_section_of_the_room_that_raised_it() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    with pytest.raises(obc.ObcError) as refused:
        obc.plan(net, torch.zeros(1, 4), [], lambda model, batch: model(batch), target="macs=?")
    assert refused.value.__notes__ == ["docs/refused.md#targets says more"]
    assert "docs/" not in str(refused.value)


def test_an_error_raised_elsewhere_names_none() -> None:
    assert not hasattr(obc.ObcError("of a plugin"), "__notes__")
