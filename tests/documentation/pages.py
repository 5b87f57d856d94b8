"""
The pages of the documentation, and the blocks of code in them.
"""

from __future__ import annotations

import re
from itertools import zip_longest
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
#: The site, without the place of the reference.
SITE = sorted((ROOT / "docs").glob("*.md"))
#: All that is written for readers.
PAGES = [README, *(ROOT / f"{name}.md" for name in ("CONTRIBUTING", "NEWS", "SECURITY")), *SITE]

_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@attrs.frozen
class Block:
    """
    A block of code.

    @ivar page: The file's name.
    @ivar line: Where it begins.
    @ivar language: Its language, or the name of Sphinx's directive in braces.
    """

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocksOf(page: Path) -> list[Block]:
    """
    @return: The blocks of a page, in order.
    """
    text = page.read_text()
    return [
        Block(page.name, text.count("\n", 0, found.start()) + 1, found[1], found[2])
        for found in _FENCE.finditer(text)
    ]


def blocks(language: str) -> list[Block]:
    """
    @return: The blocks of all pages that are in a language.
    """
    return [block for page in PAGES for block in blocksOf(page) if block.language == language]


def programs() -> list[tuple[Block, str | None]]:
    """
    @return: The Python programs, each with what it prints, which is the block of text after it.
    """
    found: list[tuple[Block, str | None]] = []
    for page in PAGES:
        inside = blocksOf(page)
        for block, following in zip_longest(inside, inside[1:]):
            if block.language == "python":
                isSaid = following is not None and following.language == "text"
                found.append((block, following.text if isSaid and following is not None else None))
    return found
