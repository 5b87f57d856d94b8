"""
Links within the built site that lead nowhere, and its size.
"""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Octets of all files; with a page for each module and a tree beside each it was ten times as much.
MOST_OCTETS = 9_000_000


def octetsOf(folder: Path) -> int:
    """
    @return: The octets of all files in a folder.
    """
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class Page(HTMLParser):
    """
    A page of HTML.

    @ivar anchors: What a link to a part of it may name.
    @ivar links: Where its links lead.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """
        Note its anchors and its link.
        """
        for name, value in attrs:
            if name == "id" or (tag, name) == ("a", "name"):
                self.anchors.add(value or "")
            elif name in ("href", "src") and value:
                self.links.append(value)


def deadLinks(site: Path) -> Iterator[str]:
    """
    @return: Each link between files of a folder whose file or part of a page is not there, with its page.
    """
    pages = {path.resolve(): Page(path.read_text()) for path in site.rglob("*.html")}
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if there.is_dir():
                there /= "index.html"
            found = pages.get(there)
            if parts.fragment and found is not None:
                isThere = unquote(parts.fragment) in found.anchors
            else:
                isThere = there.exists()
            if not isThere:
                yield f"{path.relative_to(site.resolve())}: {link}"
