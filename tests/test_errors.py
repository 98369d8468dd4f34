"""An error says which section of the documentation explains it, and that section is there."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

import obc
from obc.errors import _SECTIONS, _section

ROOT = Path(__file__).parents[1]
ERRORS = ("ObcError", "NothingToCompare", "Differs")
PAGE = (ROOT / "docs/refused.md").read_text(encoding="utf-8")


def anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    return {anchor(heading) for heading in re.findall(r"^#+ (.+)$", text, re.M)}


@cache
def raised() -> list[tuple[str, str | None]]:
    """The text of each error in the library, with … for what is filled in, and its section."""
    return list(_raised())


def _raised() -> Iterator[tuple[str, str | None]]:
    for path in (ROOT / "src/obc").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ERRORS:
                told = {k.arg: ast.literal_eval(k.value) for k in node.keywords}
                yield _text(node.args[0]), told.get("section") or _section(module)


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else "…"


def quotes() -> Iterator[tuple[str, str]]:
    """Section by section, the errors that the page quotes."""
    errors = PAGE.partition("## Reasons in")[0]
    for part in re.split(r"^## ", errors, flags=re.M)[1:]:
        heading, _, text = part.partition("\n")
        for line in re.findall(r"^\*.+\*$", text, re.M):
            yield from ((anchor(heading), quote) for quote in line.strip("*").split("* · *"))


def says(text: str, quote: str) -> bool:
    """Whether an error is the one that was quoted, whatever stands for …"""
    return bool(re.search(".*".join(map(re.escape, quote.split("…"))), text))


def test_the_sections_that_errors_name_exist() -> None:
    page = anchors(PAGE)
    assert set(_SECTIONS.values()) | {section for _, section in raised()} - {None} <= page
    assert "no-such-section" not in page


def test_the_files_that_have_a_section_of_their_own_exist() -> None:
    for name in _SECTIONS:
        path = ROOT / "src/obc" / name.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").is_file(), name


def test_a_room_that_raises_has_a_section() -> None:
    rooms = {
        path.relative_to(ROOT / "src/obc").parts[0]
        for path in (ROOT / "src/obc").rglob("*.py")
        if "raise ObcError" in path.read_text(encoding="utf-8")
    }
    # A command, a comparison and the report repeat what the rooms below them refused.
    assert rooms - {"cli", "experiments", "reporting"} <= set(_SECTIONS)


@pytest.mark.parametrize(("section", "quote"), list(quotes()))
def test_a_quoted_error_is_raised_and_names_the_section_that_quotes_it(
    section: str, quote: str
) -> None:
    sections = {there for text, there in raised() if says(text, quote)}
    assert section in sections, f"'{quote}' is raised with {sections or 'no such words'}"


def test_quotes_are_found_and_others_are_not() -> None:
    assert len(list(quotes())) > 50
    assert not any(says(text, "the moon is … made of cheese") for text, _ in raised())


def test_a_missing_package_is_explained_as_one() -> None:
    missing = [(text, there) for text, there in raised() if "pip install" in text]
    assert len(missing) > 4
    assert {there for _, there in missing} == {"what-is-not-installed"}


def test_an_unknown_name_is_explained_as_one() -> None:
    named = re.compile(r"no (site|layer|criterion|metric|model|runtime|data set) named '?…")
    assert {there for text, there in raised() if named.search(text)} == {"names"}


def test_an_error_names_the_section_of_the_room_that_raised_it() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    with pytest.raises(obc.ObcError) as refused:
        obc.plan(net, torch.zeros(1, 4), [], lambda model, batch: model(batch), target="macs=?")
    assert refused.value.__notes__ == ["docs/refused.md#targets says more"]
    assert "docs/" not in str(refused.value)


def test_an_error_may_name_another_section_than_its_room() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    with pytest.raises(obc.ObcError, match="no site named") as refused:
        obc.trace(net, torch.zeros(1, 4))["o"]
    assert refused.value.__notes__ == ["docs/refused.md#names says more"]
    again = pickle.loads(pickle.dumps(refused.value))  # as an error of another process arrives
    assert str(again) == str(refused.value)
    assert again.__notes__ == refused.value.__notes__


def test_an_error_raised_elsewhere_names_none() -> None:
    assert not hasattr(obc.ObcError("of a plugin"), "__notes__")
