"""The Python blocks of each page of the documentation run, in order, as one program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import vision
from tests.hugging import import_transformers

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(p.name for p in DOCS.glob("*.md") if "```python" in p.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES)
def test_the_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # for what the examples write
    text = (DOCS / page).read_text(encoding="utf-8")
    for name in ("transformers", "peft"):
        if re.search(rf"^(import|from) {name}\b", text, re.MULTILINE):
            if not vision.installed(name):
                pytest.skip(f"{name} is not installed")
            import_transformers()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    exec(compile("\n".join(blocks), page, "exec"), {"__name__": "docs"})


def test_there_are_pages() -> None:
    assert {"method.md", "tracing.md", "extending.md", "tuning.md", "report.md"} <= set(PAGES)
