"""What a page is made of: its elements, what they refer to, and the words in it."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = {"meta", "link", "img", "br", "hr", "input"}


class Markup(HTMLParser):
    """Reads a page and fails on elements that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.headings: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1] == tag, f"</{tag}> closes {self._open[-3:]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self._open and self._open[-1] in ("h1", "h2"):
            self.headings.append(data)

    @property
    def figures(self) -> set[str]:
        return {value for name, value in self.attributes if name == "data-figure"}
