"""
A long answer to a query, cut into pages.

One page is one packet (L{limits.ANSWER_BYTES}) and a bounded part of the work
(L{SOCKETS_PER_PAGE}): whoever is asked does something else between two of them, and may
have as many sockets as it likes.

Pure: rows in, JSON objects out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from twisted_ib import limits
from twisted_ib.hca.host.handshake import QueryAnswer

#: Rows of one page of an answer about listeners and connections, and places where one is looked for.
SOCKETS_PER_PAGE = 100

#: Characters of each text in a row that would not fit into a page of its own.
_SHORT = 64

Row = Sequence[Any]


def pages(
    head: Mapping[str, Any], columns: Sequence[str], rows: Iterable[Row | None]
) -> Iterator[dict[str, Any]]:
    """
    Put rows on pages, as they are asked for.

    @param head: What every page begins with: names and short values.
    @param columns: What the values of a row are called.
    @param rows: The rows; L{None} where looking for one found none.
    @return: The pages: C{head}, C{columns}, C{rows}, and C{more}, whether another one comes.
    """
    fixed = {**head, "columns": list(columns)}
    room = limits.ANSWER_BYTES - len(QueryAnswer({**fixed, "rows": [], "more": False}).pack())
    page: list[Row] = []
    left = room
    looked = 0
    for row in rows:
        if row is not None:
            row, size = _fitting(row, room)
            if size > left:
                yield {**fixed, "rows": page, "more": True}
                page, left, looked = [], room, 0
            page.append(row)
            left -= size
        looked += 1
        if looked == SOCKETS_PER_PAGE:
            yield {**fixed, "rows": page, "more": True}
            page, left, looked = [], room, 0
    yield {**fixed, "rows": page, "more": False}


def _fitting(row: Row, room: int) -> tuple[Row, int]:
    """
    @return: A row that fits into C{room} bytes, its long texts cut if they must be, and its
        size there.
    """
    size = len(json.dumps(row)) + 2
    if size > room:
        row = [value[:_SHORT] if isinstance(value, str) else value for value in row]
        size = len(json.dumps(row)) + 2
    return row, size


__all__ = ["pages"]
