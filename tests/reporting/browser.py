"""Chromium without a window: what it sees on a page, and what it complains of."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
# The page allows no scripts. A copy of it that does is looked at with this one, in a frame, for
# no window is less than 500 pixels wide.
_FRAME = """<!DOCTYPE html><meta charset="utf-8"><style>:root {{ color-scheme: light dark }}</style>
<iframe width="{width}" height="900" style="border: 0" srcdoc="{page}"></iframe>"""
_LOOK = """<script>
const errors = [];
window.addEventListener("error", e => errors.push(String(e.message)));
window.addEventListener("load", () => {
  const box = e => e.getBoundingClientRect();
  const style = getComputedStyle(document.body);
  const figures = [...document.querySelectorAll("[data-figure]")].map(e => ({
    kind: e.dataset.figure, width: box(e).width, height: box(e).height,
    shapes: e.querySelectorAll("path, rect, circle, image").length,
  }));
  const outside = [...document.querySelectorAll("figure, .bars, .tile")].flatMap(f =>
    [...f.querySelectorAll("text, h4, p, span, li")]
      .filter(t => box(t).left < box(f).left - 3 || box(t).right > box(f).right + 3)
      .map(t => t.textContent));
  const letters = [...document.querySelectorAll("figure.chart:not(.heat) > svg")].map(s =>
    12 * box(s).width / s.viewBox.baseVal.width);
  const found = {
    width: innerWidth, scroll: document.documentElement.scrollWidth, errors, figures, outside,
    letters, ink: style.color, paper: style.backgroundColor,
  };
  const place = parent.document.createElement("pre");
  place.id = "found";
  place.textContent = JSON.stringify(found);
  parent.document.body.append(place);
});
</script>"""
_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')


@dataclass(frozen=True)
class Browser:
    folder: Path
    width: int = 1200
    dark: bool = False

    def run(self, page: Path, *options: str) -> tuple[str, str]:
        """What Chromium prints, and what it logs."""
        assert CHROMIUM is not None
        command = [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--disable-dev-shm-usage", f"--user-data-dir={self.folder / 'profile'}",
            "--window-size=1300,900", "--enable-logging=stderr", "--v=0",
            f"--blink-settings=preferredColorScheme={0 if self.dark else 1}",
            *options, page.as_uri(),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        return done.stdout, done.stderr

    def look(self, page: Path) -> dict[str, Any]:
        """Sizes, colours and errors, from a copy of the page in which scripts may run."""
        text, count = _POLICY.subn(_LOOK.replace("\\", r"\\"), page.read_text(encoding="utf-8"))
        assert count == 1
        copy = self.folder / "looked_at.html"
        framed = _FRAME.format(width=self.width, page=html.escape(text))
        copy.write_text(framed, encoding="utf-8")
        printed, _ = self.run(copy, "--dump-dom")
        inside = re.search(r'<pre id="found">(.*?)</pre>', printed, re.DOTALL)
        assert inside is not None, "the page was not loaded"
        found: dict[str, Any] = json.loads(html.unescape(inside[1]))
        return found

    def complaints(self, page: Path) -> list[str]:
        """Lines that the page itself, as it is, sends to the console."""
        _, logged = self.run(page, "--dump-dom")
        return [line for line in logged.splitlines() if "CONSOLE" in line]
