"""
Validation of what processes answer to C{ib-ss}: from pages of rows to one object per listener and
connection.

An answer comes from another process, perhaps of another version of this program: a row with an invalid
value is left out, and so are columns unknown here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from twisted_ib import limits
from twisted_ib.hca.base.socketrows import CONNECTION, LISTENER
from twisted_ib.hca.host.query import SocketsAnswer

_KINDS = (LISTENER, CONNECTION)
#: Times are seconds since 1970.  time.localtime() raises OverflowError or OSError for much later ones.
_LATEST = 1 << 36
_COUNT_BITS = 64


def _isText(value: object) -> bool:
    return isinstance(value, str) and len(value) <= limits.SOCKET_RULE


def _isTextOrNone(value: object) -> bool:
    return value is None or _isText(value)


def _isCount(value: object) -> bool:
    if value is None:
        return True
    # In Python, True is an int; in JSON it is none.
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << _COUNT_BITS


def _isTime(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LATEST


#: The columns that a row must have, with their tests.
_REQUIRED: dict[str, Callable[[object], bool]] = {
    "kind": lambda value: value in _KINDS,
    "provider": _isText,
    "device": _isTextOrNone,
    "local": _isTextOrNone,
    "remote": _isTextOrNone,
    "state": _isText,
    "rule": _isText,
    "fallback": _isTextOrNone,
}
#: The columns that it may have.
_COUNTS = ("messages_sent", "messages_received", "bytes_sent", "bytes_received")
_FIGURES = dict.fromkeys(("credits", "in_flight", "retransmits", *_COUNTS), _isCount)
_FIGURES["round_trip"] = _isTime
_TIMES = dict.fromkeys(("asked", "decided", "connected"), _isTime)


def socketsOf(told: SocketsAnswer, programOf: Callable[[int], str]) -> list[dict[str, Any]]:
    """
    @param programOf: Gives the name of a process's program.
    @return: The listeners and connections of a process, as C{--json} prints them.
    """
    found = []
    for page in told.pages:
        # The kernel's pid, where it gives one: a process could claim another's.
        head = {"pid": told.pid or _ownNumber(page), "program": _program(page, told.pid, programOf)}
        found += [{**head, **row} for row in _rows(page)]
    return found


def _ownNumber(page: dict[str, Any]) -> int | None:
    pid = page.get("pid")
    return pid if _isCount(pid) else None


def _program(page: dict[str, Any], pid: int, programOf: Callable[[int], str]) -> str:
    # The process's own account first: it knows the script behind an interpreter.  Never trusted, so a lie is
    # harmless.
    program = page.get("program")
    if isinstance(program, str) and program and len(program) <= limits.PROGRAM_BYTES:
        return program
    return programOf(pid) if pid else ""


def _rows(page: dict[str, Any]) -> Iterator[dict[str, Any]]:
    columns = page.get("columns")
    if not isinstance(columns, list) or not all(isinstance(column, str) for column in columns):
        return
    for values in page["rows"]:
        if isinstance(values, list) and len(values) == len(columns):
            row = _checked(dict(zip(columns, values, strict=True)))
            if row is not None:
                yield row


def _checked(values: dict[str, Any]) -> dict[str, Any] | None:
    row = {}
    for name, isValid in _REQUIRED.items():
        if name not in values or not isValid(values[name]):
            return None
        row[name] = values[name]
    for name, isValid in _FIGURES.items():
        value = values.get(name)
        row[name] = value if isValid(value) else None
    # An invalid time or figure is dropped alone: unlike the required columns it does not make the row
    # meaningless.
    row["times"] = {
        name: values.get(name) if isValid(values.get(name)) else None for name, isValid in _TIMES.items()
    }
    return row


def order(entry: dict[str, Any]) -> tuple[Any, ...]:
    """
    @return: The sort key of a listener or connection: process, listeners first, address.
    """
    return (
        entry["program"],
        entry["pid"] or 0,
        entry["kind"] != LISTENER,
        entry["provider"],
        entry["local"] or "",
        entry["remote"] or "",
    )
