"""The Python blocks of each page of the documentation run, in order, as one program."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
import typer

import obc
from obc.cli.app import app
from tests import vision
from tests.hugging import import_transformers

TRACING = Path(__file__).parents[1] / "src" / "obc" / "tracing"
DOCS = Path(__file__).parents[1] / "docs"
FREEZE = ("freeze", "choose", "freeze_all", "Reason", "_reason")
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


def test_the_api_page_has_every_public_name() -> None:
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    directives = re.findall(r"^\.\. auto(?:function|class|method):: ([\w.]+)$", page, re.M)
    public = {f"obc.{name}" for name in obc.__all__} - {"obc.Plan"}  # told method by method
    public |= {f"obc.tasks.{name}" for name in obc.tasks.__all__} - {
        "obc.tasks.Evaluation",
        "obc.tasks.evaluate",
    }  # the same as in obc
    assert sorted(public - set(directives)) == []


def printed(text: str) -> list[list[str]]:
    """The words of each command of obc that a page prints, in a block or in a line."""
    text = text.replace("\\\n", " ")
    blocks = re.findall(r"^```(.*?)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    shell = [block for language, block in blocks if language in ("", "sh")]
    commands = [line for block in shell for line in block.splitlines() if line.startswith("obc ")]
    commands += re.findall(r"`(obc [a-z]+ [^`\n]+)`", text)
    return [shlex.split(command, comments=True)[1:] for command in commands]


def test_commands_take_the_options_that_are_printed() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    pages = [DOCS.parent / "README.md", *(DOCS / page for page in sorted(DOCS.rglob("*.md")))]
    lines = [words for page in pages for words in printed(page.read_text(encoding="utf-8"))]
    known = {
        name: {"--help"}.union(*((*p.opts, *p.secondary_opts) for p in command.params))
        for name, command in commands.items()
    }
    assert len(lines) > 40
    unknown = [
        (name, word)
        for name, *words in lines
        for word in words
        if word.startswith("--") and word.partition("=")[0] not in known.get(name, ())
    ]
    assert unknown == []


def reasons() -> set[str]:
    """What the tracer may say of frozen channels, up to the first thing that is filled in."""
    texts = {"all of it is one unit", "nothing reads it", "fails when narrower"}
    for file in TRACING.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _name(node.func) in FREEZE:
                texts |= {text for argument in node.args for text in _words(argument)}
            elif isinstance(node, ast.Assign) and _name(node.targets[0]) == "UNREAD":
                texts |= set(_words(node.value))
    return texts


def _name(node: ast.expr) -> str:
    return getattr(node, "attr", "") or getattr(node, "id", "")


def _words(node: ast.expr) -> list[str]:
    """A text without what is filled in at its ends."""
    if isinstance(node, ast.JoinedStr):
        return [text for part in node.values for text in _words(part) if len(text) > 1][:1]
    text = node.value if isinstance(node, ast.Constant) else ""
    return [text.strip("' :")] if isinstance(text, str) and text.strip("' :") else []


def test_each_reason_is_explained() -> None:
    explained = (DOCS / "refused.md").read_text(encoding="utf-8").partition("## Reasons in")[2]
    told = {
        quote
        for line in re.findall(r"^\*(.+)\*$", explained, re.M)
        for quote in line.split("* · *")
    }
    known = reasons()
    assert len(known) > 30
    assert [text for text in sorted(known) if not any(text in quote for quote in told)] == []
    assert [quote for quote in sorted(told) if not any(text in quote for text in known)] == []
