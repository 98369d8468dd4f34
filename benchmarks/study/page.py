"""Fills the marked blocks of `docs/results.md` and other pages from the committed cells."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.study import blocks, claims, figures, tuned
from benchmarks.study.defaults import defaults
from benchmarks.study.detection import detection
from benchmarks.study.language import language

ROOT = Path(__file__).parents[2]
PAGES = (
    ROOT / "docs" / "results.md",
    ROOT / "docs" / "recalibration.md",
    ROOT / "README.md",
)
BLOCKS: dict[str, Callable[[], str]] = {
    "summary": claims.summary,
    "claims": claims.claims,
    "rivals": claims.rivals,
    "digits": blocks.digits,
    "block-rank": blocks.block_rank,
    "resnet20": partial(blocks.criteria, "resnet20"),
    "resnet56": partial(blocks.criteria, "resnet56"),
    "vgg16": partial(blocks.criteria, "vgg16"),
    "vit": partial(blocks.criteria, "vit"),
    "mobilenet": partial(blocks.criteria, "mobilenet"),
    "mobilenet_last": partial(blocks.criteria, "mobilenet_last"),
    "settings": blocks.settings,
    "ablations": blocks.ablations,
    "recalibrated": blocks.recalibrated,
    "redundancy": blocks.redundancy,
    "language": language,
    "detection": detection,
    "equivalent": blocks.equivalent,
    "tuned": tuned.overview,
    "tuning": tuned.tables,
    "passes": blocks.passes,
    "seconds": blocks.seconds,
    "defaults": defaults,
    "fashion": partial(blocks.criteria, "fashion"),
}
MARKED = re.compile(r"(<!-- study: ([\w-]+) -->\n).*?(<!-- end of study -->)", re.DOTALL)


def filled(text: str) -> str:
    """A page with each marked block made anew.

    >>> filled("<!-- study: nothing -->\\n<!-- end of study -->")
    Traceback (most recent call last):
    ...
    KeyError: 'nothing'
    """

    def block(match: re.Match[str]) -> str:
        content = BLOCKS[match[2]]()
        return f"{match[1]}{content}\n{match[3]}" if content else f"{match[1]}{match[3]}"

    return MARKED.sub(block, text)


def write() -> None:
    """The pages and the pictures."""
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    figures.draw(ROOT / "docs")
