"""
The command's side of a socket page.

The page is another process's file: it is opened without waiting, read within bounds, and nothing in it is
believed (L{twisted_ib.tools.show.sockettext} checks the values).
"""

from __future__ import annotations

import os
import stat
from typing import Any

from twisted_ib.hca.base.socketrows import COLUMNS, CONNECTION, ESTABLISHED, LISTEN, LISTENER
from twisted_ib.hca.host.socketpage import records
from twisted_ib.hca.host.socketpage.page import SUFFIX
from twisted_ib.hca.host.socketpage.records import FIRST_ROW, RECORD, ROWS, RowValues, parseHeader, parseRows


def readPage(directory: int, hca: str, uid: int) -> dict[str, Any] | None:
    """
    Read the socket page beside the entry of an HCA.

    @param directory: The descriptor of the run directory.
    @param hca: The name of the HCA's socket there.
    @param uid: The user whose file it must be.
    @return: As an answer to a query: C{pid}, C{program}, C{columns} and C{rows}; L{None} if there is none.
    """
    # O_NONBLOCK: a FIFO in its place would be waited for.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(hca + SUFFIX, flags, dir_fd=directory)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        isTheirs = stat.S_ISREG(status.st_mode) and status.st_uid == uid
        return _parsed(fd) if isTheirs else None
    except OSError:
        return None
    finally:
        os.close(fd)


def _parsed(fd: int) -> dict[str, Any] | None:
    most = (FIRST_ROW + ROWS) * RECORD
    data = os.pread(fd, most, 0)
    header = parseHeader(data[:RECORD])
    if header is None:
        return None
    texts: dict[int, str | None] = {}

    def text(number: int) -> str | None:
        if number not in texts:
            # Read when it is needed: a row that came after the first reading may name a new one.
            texts[number] = records.parseText(os.pread(fd, RECORD, number * RECORD))
        return texts[number]

    def readAgain(number: int) -> bytes:
        return os.pread(fd, RECORD, (FIRST_ROW + number) * RECORD)

    rows = [_row(values, text) for values in parseRows(data[FIRST_ROW * RECORD :], readAgain)]
    return {"pid": header.pid, "program": header.program, "columns": list(COLUMNS), "rows": rows}


def _row(values: RowValues, text: Any) -> list[Any]:
    kind, provider, device, rule, fallback, *times, here, port, there, peer = values
    isListener = kind == records.LISTENER
    return [
        LISTENER if isListener else CONNECTION,
        text(provider),
        text(device),
        _place(here, port),
        None if isListener else _place(there, peer),
        LISTEN if isListener else ESTABLISHED,
        *[None] * 8,
        text(rule),
        text(fallback),
        *[when if when >= 0 else None for when in times],
    ]


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
