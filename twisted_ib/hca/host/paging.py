"""
Paging: a long answer to a query, cut into messages.

A page is one packet (L{limits.ANSWER_BYTES}) and a bounded amount of work (L{SOCKETS_PER_PAGE}): the
process that answers does other work between two pages, and may have any number of sockets.

Pure: rows in, JSON objects out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from twisted_ib import limits
from twisted_ib.hca.host.handshake import QueryAnswer

#: The most rows of one page, and the most candidates examined for it.
SOCKETS_PER_PAGE = 100

#: Characters kept of each text in a row that would fill more than a page.
_SHORT = 64

Row = Sequence[Any]


def pages(
    head: Mapping[str, Any], columns: Sequence[str], rows: Iterable[Row | None]
) -> Iterator[dict[str, Any]]:
    """
    Put rows on pages, lazily.

    @param head: The keys that every page begins with: names and short values.
    @param columns: The names of the values of a row.
    @param rows: The rows; L{None} for a candidate that was no row.
    @return: The pages: C{head}, C{columns}, C{rows}, and C{more}, whether another page follows.
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
        # A candidate that is no row costs time too: without this a process with many other objects would
        # search them all in one turn.
        looked += 1
        if looked == SOCKETS_PER_PAGE:
            yield {**fixed, "rows": page, "more": True}
            page, left, looked = [], room, 0
    yield {**fixed, "rows": page, "more": False}


def _fitting(row: Row, room: int) -> tuple[Row, int]:
    # Two for the comma and blank between rows.  JSON in ASCII, so characters are bytes.
    size = len(json.dumps(row)) + 2
    if size > room:
        row = [value[:_SHORT] if isinstance(value, str) else value for value in row]
        size = len(json.dumps(row)) + 2
    return row, size
