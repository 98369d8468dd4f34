"""The Python blocks of each page of the documentation run, in order, as one program."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests import vision
from tests.hugging import import_transformers

TRACING = Path(__file__).parents[1] / "src" / "obc" / "tracing"
DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(
    p.relative_to(DOCS).as_posix()
    for p in DOCS.rglob("*.md")
    if "```python" in p.read_text(encoding="utf-8")
)


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
    assert {"models/llama.md", "steps.md"} <= set(PAGES)


def reasons() -> set[str]:
    """What the tracer may say of frozen channels, up to the first thing that is filled in."""
    texts = {"all of it is one unit", "nothing reads it", "fails when narrower"}
    for file in TRACING.rglob("*.py"):
        nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        for call in (node for node in nodes if isinstance(node, ast.Call)):
            if getattr(call.func, "attr", "") in ("freeze", "choose"):
                texts |= {text for argument in call.args for text in _words(argument)}
    return texts


def _words(node: ast.expr) -> list[str]:
    if isinstance(node, ast.JoinedStr):
        return _words(node.values[0])
    text = node.value if isinstance(node, ast.Constant) else ""
    return [text.strip()] if isinstance(text, str) and text.strip() else []


def test_each_reason_is_explained() -> None:
    explained = (DOCS / "refused.md").read_text(encoding="utf-8")
    assert len(reasons()) > 15
    assert [text for text in sorted(reasons()) if text not in explained] == []
