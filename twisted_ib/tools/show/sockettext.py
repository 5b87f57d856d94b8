"""
Listeners and connections for people: a table, and the reason for each choice of transport.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from typing import Any

from twisted_ib import limits
from twisted_ib.hca.base.socketrows import CONNECTION, LISTENER
from twisted_ib.hca.host.query import SocketsAnswer
from twisted_ib.tools.program import printable
from twisted_ib.tools.show.processes import UNKNOWN

_ROW_KINDS = (LISTENER, CONNECTION)
#: Times are seconds since 1970.  time.localtime() raises OverflowError or OSError for much later ones.
_LATEST = 1 << 36
_COUNT_BITS = 64

#: The table's columns: title, key, and whether it is a number.  The words are those of ss(8) where it has
#: them.
_COLUMNS: tuple[tuple[str, str, bool], ...] = (
    ("Program", "program", False),
    ("PID", "pid", True),
    ("Kind", "kind", False),
    ("Via", "provider", False),
    ("Device", "device", False),
    ("State", "state", False),
    ("Local", "local", False),
    ("Remote", "remote", False),
    ("Credits", "credits", True),
    ("InFlight", "in_flight", True),
    ("Retrans", "retransmits", True),
    ("Rule", "rule", False),
)
_KINDS = (LISTENER, CONNECTION)
_NOTHING = "-"
_SPACE = "  "


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
    "kind": lambda value: value in _ROW_KINDS,
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
        pid = told.pid or (page["pid"] if _isCount(page.get("pid")) else None)
        head = {"pid": pid, "program": _program(page, told.pid, programOf)}
        found += [{**head, **row} for row in _rows(page)]
    return found


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


def shown(value: object) -> str:
    """
    @return: A value of a listener or connection, for a terminal.
    """
    return _NOTHING if value is None or value == "" else printable(str(value))


def table(
    entries: Sequence[dict[str, Any]],
    why: bool = False,
    byProcess: bool = False,
    header: bool = True,
    info: bool = False,
) -> list[str]:
    """
    A column in which nothing stands is left out.

    @param why: Whether to add the reason for each.
    @param byProcess: Whether a line above the sockets of each process names it, instead of the first columns.
    @param header: Whether the first line has the columns' names.
    @param info: Whether to add the L{figures} of each connection.
    @return: The lines of a table of listeners and connections.
    """
    columns = _COLUMNS[2:] if byProcess else _COLUMNS
    cells = [[shown(entry[name]) for _, name, _ in columns] for entry in entries]
    used = [not cells or any(row[index] != _NOTHING for row in cells) for index in range(len(columns))]
    columns = tuple(compress(columns, used))
    cells = [list(compress(row, used)) for row in cells]
    titles = [title for title, _, _ in columns]
    widths = [
        max(map(len, each)) for each in zip(titles if header else [""] * len(titles), *cells, strict=True)
    ]
    numbers = [isNumber for _, _, isNumber in columns]
    lines = [_line(titles, widths, numbers)] if header else []
    process = None
    for entry, row in zip(entries, cells, strict=True):
        if byProcess and (entry["pid"], entry["program"]) != process:
            process = entry["pid"], entry["program"]
            lines.append(f"{shown(entry['program'])}, process {shown(entry['pid'])}:")
        lines.append(_line(row, widths, numbers))
        more = reasons(entry) if why else []
        if info and (spoken := figures(entry)):
            more.append(spoken)
        lines += [f"    {line}" for line in more]
    return lines


def figures(entry: dict[str, Any]) -> str:
    """
    @return: how old a connection is, what it has carried, and the round trip, as far as that is known.
    """
    found = []
    connected = entry["times"]["connected"]
    if connected is not None:
        # The wall clock may have been set back since.
        found.append(f"age {max(0.0, time.time() - connected):.0f} s")
    for unit in ("messages", "bytes"):
        sent, received = entry[f"{unit}_sent"], entry[f"{unit}_received"]
        if sent is not None and received is not None:
            found.append(f"{unit} {sent} sent, {received} received")
    if entry["round_trip"] is not None:
        found.append(f"round trip {entry['round_trip'] * 1000:.3f} ms")
    return "; ".join(found)


def _line(cells: Iterable[str], widths: Iterable[int], numbers: Iterable[bool]) -> str:
    padded = [
        cell.rjust(width) if isNumber else cell.ljust(width)
        for cell, width, isNumber in zip(cells, widths, numbers, strict=True)
    ]
    return _SPACE.join(padded).rstrip()


def total(entries: Sequence[dict[str, Any]]) -> str:
    """
    @return: How many listeners and connections there are, by provider.
    """
    processes = len({(entry["pid"], entry["program"]) for entry in entries})
    parts = []
    for kind in _KINDS:
        providers = Counter(shown(entry["provider"]) for entry in entries if entry["kind"] == kind)
        each = ", ".join(f"{name} {count}" for name, count in sorted(providers.items()))
        parts.append(_counted(providers.total(), kind) + (f" ({each})" if each else ""))
    return f"Total: {', '.join(parts)}, {_counted(processes, 'process', 'es')}"


def _counted(count: int, word: str, plural: str = "s") -> str:
    return f"{count} {word}{'' if count == 1 else plural}"


def reasons(entry: dict[str, Any]) -> list[str]:
    """
    @return: Lines that give the reason for a listener or connection, and its times.
    """
    found = [_byRule(entry)]
    if entry["fallback"] is not None:
        found.append(f"not over SDP: {shown(entry['fallback'])}")
    times = entry["times"]
    spoken = [f"{name} {moment(when)}" for name, when in times.items() if when is not None]
    asked, connected = times["asked"], times["connected"]
    # The wall clock may have been set back between the two.
    if asked is not None and connected is not None and connected >= asked:
        spoken.append(f"took {(connected - asked) * 1000:.1f} ms")
    if spoken:
        found.append(", ".join(spoken))
    return found


def _byRule(entry: dict[str, Any]) -> str:
    carried = shown(entry["provider"])
    if entry["device"] is not None:
        carried += f" on {shown(entry['device'])}"
    rule = entry["rule"]
    if rule == UNKNOWN:
        return f"{carried}: the process is busy, and has not said why before"
    if rule == "explicit":
        return f"{carried}: asked for by name, without the switch"
    if rule == "default":
        return f"{carried}: no rule is about it"
    return f"{carried}: by the rule at {shown(rule)}"


def moment(when: float) -> str:
    """
    @param when: Seconds since 1970.
    @return: The local time of day, with the date unless it is today.
    """
    local = time.localtime(when)
    text = time.strftime("%H:%M:%S", local) + f".{int(when * 1000) % 1000:03}"
    return text if local[:3] == time.localtime()[:3] else time.strftime("%Y-%m-%d ", local) + text


def cut(lines: Sequence[str], columns: int, rows: int) -> list[str]:
    """
    Fit lines into a terminal.

    @return: Lines cut at the right and at the bottom, with a last line that counts those left out.
    """
    # The cursor is on a line of its own.  A terminal of unknown size may report 0.
    rows = max(rows - 1, 2)
    found = list(lines)
    if len(found) > rows:
        left = len(found) - rows + 1
        found = [*found[: rows - 1], f"... and {left} lines more"]
    return [line[: max(columns - 1, 1)] for line in found]
